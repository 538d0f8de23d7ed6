"""What libraries may give by DLPack, filled in by hand: also what none should."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

FLOAT32 = (2, 32, 1)
READ_ONLY, COPIED = 1, 2


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 2),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def _capsule(managed: ctypes.Structure, name: bytes) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(ctypes.addressof(managed), name, None)


class Producer:
    """An array of float32 that lends `memory`, as `how` says; `lent` and `returned` count.

    Its keywords: shape, ndim, dtype, version (None: a capsule of DLPack before 1.0) and flags.
    """

    def __init__(self, memory: Any = (1.0, 1.0, 1.0, 1.0), **how: Any) -> None:
        self.memory, self.how = np.asarray(memory, np.float32), how
        self.lent, self.returned = 0, 0
        self._kept: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        self.lent += 1
        how = {"shape": self.memory.shape, "dtype": FLOAT32, "version": (1, 0), "flags": 0, **self.how}
        shape = how["shape"]
        extents = None if shape is None else (ctypes.c_int64 * max(1, len(shape)))(*shape)
        ndim = how.get("ndim", 0 if shape is None else len(shape))
        tensor = _Tensor(self.memory.ctypes.data, (1, 0), ndim, how["dtype"][:2], how["dtype"][2], extents)
        deleter = _Deleter(self._take_back)
        if how["version"]:
            managed: Any = _Versioned(how["version"], None, deleter, how["flags"], tensor)
        else:
            managed = _Managed(tensor, None, deleter)
        self._kept.append((managed, extents))  # the memory that the capsule points to
        return _capsule(managed, b"dltensor_versioned" if how["version"] else b"dltensor")

    def _take_back(self, _: Any) -> None:
        self.returned += 1
