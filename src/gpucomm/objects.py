"""Plain Python objects as bytes and back, exactly; no pickle, so that bytes of others run nothing here.

A value is a tag of one byte and its content; lengths are 8 bytes, little-endian.
"""

from __future__ import annotations

import math
import pickle as pickles
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError, UnsupportedTypeError

__all__ = ["decode", "encode"]

_LENGTH = struct.Struct("<Q")
_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")
_DEEPEST = 100  # nested containers; a cycle ends there too
_DTYPE = re.compile(r"[<>|][biufcmMSU]\d+(\[\w+\])?", re.ASCII)


def encode(obj: Any, pickle: bool = False) -> bytes:
    """The bytes of an object.

    Args:
        obj: None, bool, int, float, complex, str, bytes, NumPy arrays and scalars of plain dtypes, and lists,
            tuples and dicts of these; of these very types, for a subclass would come back as its base.
        pickle: whether anything else is pickled; all of the object where it is nested more than 100 deep.

    Returns:
        Bytes that `decode` turns into an equal object.

    Raises:
        InvalidArgumentError: a collective that is under way writes one of the arrays, pickled ones aside.
        UnsupportedTypeError: there is something else, or it is nested more than 100 deep, and `pickle` is
            False; or pickle does not take it.
    """
    parts: list[bytes] = []
    try:
        _put(obj, parts, pickle, 0)
    except _TooDeepError:
        if not pickle:
            raise _unsendable(f"an object that is nested more than {_DEEPEST} deep") from None
        return _block(b"P", _pickled(obj))
    return b"".join(parts)


class _TooDeepError(Exception):
    pass


def _unsendable(what: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"{what} cannot be sent without pickle: pass pickle=True on all ranks, if you trust each of them"
    )


def decode(data: bytes, pickle: bool = False) -> Any:
    """The object that `encode` made these bytes of.

    Args:
        data: the bytes, all of them.
        pickle: whether pickled parts may be unpickled, which can run any code.

    Returns:
        The object; its arrays are new and writable.

    Raises:
        InvalidArgumentError: the bytes are damaged.
        UnsupportedTypeError: a part is pickled and `pickle` is False, or it cannot be unpickled here.
    """
    reader = _Reader(data, pickle)
    try:
        obj = reader.value(0)
    except (UnsupportedTypeError, MemoryError):
        raise
    except Exception as error:  # whatever a damaged dtype, text or pickle may raise
        raise InvalidArgumentError(f"the bytes of an object are damaged: {error}") from None
    if reader.left:
        raise InvalidArgumentError(f"the bytes of an object are damaged: {reader.left} bytes too many")
    return obj


def _put(obj: Any, parts: list[bytes], pickle: bool, depth: int) -> None:
    kind = type(obj)
    if kind in (list, tuple, dict) and depth == _DEEPEST:
        raise _TooDeepError
    if kind in (list, tuple):
        parts.append((b"l" if kind is list else b"t") + _LENGTH.pack(len(obj)))
        for item in obj:
            _put(item, parts, pickle, depth + 1)
    elif kind is dict:
        parts.append(b"d" + _LENGTH.pack(len(obj)))
        for key, value in obj.items():
            _put(key, parts, pickle, depth + 1)
            _put(value, parts, pickle, depth + 1)
    elif kind in _LEAVES:
        parts.append(_LEAVES[kind](obj))
    elif (kind is np.ndarray or isinstance(obj, np.generic)) and _DTYPE.fullmatch(obj.dtype.str):
        _put_array(obj, parts)
    elif pickle:
        parts.append(_block(b"P", _pickled(obj)))
    else:
        array = kind is np.ndarray or isinstance(obj, np.generic)
        of = f" of dtype {obj.dtype}" if array else ""
        raise _unsendable(f"a {kind.__module__}.{kind.__qualname__}{of}")


def _pickled(obj: Any) -> bytes:
    try:
        return pickles.dumps(obj)
    except Exception as error:  # whatever the object's own methods may raise
        raise UnsupportedTypeError(
            f"a {type(obj).__module__}.{type(obj).__qualname__} cannot be pickled: {error!r}"
        ) from None


def _block(tag: bytes, content: bytes) -> bytes:
    return tag + _LENGTH.pack(len(content)) + content


def _check_settled(x: np.ndarray) -> None:
    reach = [(n - 1) * stride for n, stride in zip(x.shape, x.strides, strict=True)]
    begin = x.__array_interface__["data"][0] + sum(step for step in reach if step < 0)
    _core.check_settled(begin, sum(map(abs, reach)) + x.itemsize)


def _put_array(x: Any, parts: list[bytes]) -> None:
    if type(x) is np.ndarray and x.size:
        _check_settled(x)
    shape = x.shape
    parts.append(_block(b"a" if type(x) is np.ndarray else b"g", x.dtype.str.encode()))
    parts.append(b"".join(_LENGTH.pack(n) for n in (len(shape), *shape)))
    parts.append(x.tobytes())


_LEAVES: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"N",
    bool: lambda x: b"T" if x else b"F",
    int: lambda x: _block(b"i", x.to_bytes(x.bit_length() // 8 + 1, "little", signed=True)),
    float: lambda x: b"f" + _FLOAT.pack(x),
    complex: lambda x: b"c" + _COMPLEX.pack(x.real, x.imag),
    str: lambda x: _block(b"s", x.encode("utf-8", "surrogatepass")),
    bytes: lambda x: _block(b"b", x),
    # As arrays of no dimensions these would lose NULs at their ends.
    np.str_: lambda x: _block(b"S", x.encode("utf-8", "surrogatepass")),
    np.bytes_: lambda x: _block(b"B", bytes(x)),
}


class _Reader:
    def __init__(self, data: bytes, pickle: bool) -> None:
        self._data, self._pickle, self._at = memoryview(data), pickle, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def value(self, depth: int) -> Any:
        tag = bytes(self._take(1))
        if tag in b"ltd" and depth == _DEEPEST:
            raise ValueError("nested too deep")
        if tag in b"lt":
            items = [self.value(depth + 1) for _ in range(self._count())]
            return items if tag == b"l" else tuple(items)
        if tag == b"d":
            return {self.value(depth + 1): self.value(depth + 1) for _ in range(self._count())}
        if tag in b"ag":
            return self._array(tag == b"g")
        if tag == b"P":
            return self._unpickled(self._block())
        if tag not in self._LEAVES:
            raise ValueError(f"unknown tag {tag!r}")
        return self._LEAVES[tag](self)

    def _take(self, count: int) -> memoryview:
        if count > self.left:
            raise ValueError(f"{count - self.left} bytes too few")
        self._at += count
        return self._data[self._at - count : self._at]

    def _length(self) -> int:
        return int(_LENGTH.unpack(self._take(_LENGTH.size))[0])

    def _count(self) -> int:
        count = self._length()
        if count > self.left:  # an item has a byte at least: no memory for what cannot be there
            raise ValueError(f"{count} items in {self.left} bytes")
        return count

    def _block(self) -> bytes:
        return bytes(self._take(self._length()))

    def _array(self, scalar: bool) -> Any:
        name = self._block().decode("ascii")
        if not _DTYPE.fullmatch(name):
            raise ValueError(f"{name!r} is no dtype")
        dtype = np.dtype(name)
        shape = [self._length() for _ in range(self._count())]
        content = bytearray(self._take(math.prod(shape) * dtype.itemsize))
        x = np.ndarray(shape, dtype, content if content else None)
        return x[()] if scalar else x

    def _unpickled(self, content: bytes) -> Any:
        if not self._pickle:
            raise UnsupportedTypeError(
                "a rank sent a pickled object, which this one does not unpickle: pass pickle=True on all"
                " ranks"
            )
        try:
            return pickles.loads(content)
        except Exception as error:  # a class that is not here, or whatever its own methods may raise
            raise UnsupportedTypeError(f"what was pickled cannot be unpickled here: {error!r}") from None

    _LEAVES: dict[bytes, Callable[[_Reader], Any]] = {  # noqa: RUF012
        b"N": lambda self: None,
        b"T": lambda self: True,
        b"F": lambda self: False,
        b"i": lambda self: int.from_bytes(self._block(), "little", signed=True),
        b"f": lambda self: _FLOAT.unpack(self._take(8))[0],
        b"c": lambda self: complex(*_COMPLEX.unpack(self._take(16))),
        b"s": lambda self: self._block().decode("utf-8", "surrogatepass"),
        b"b": lambda self: self._block(),
        b"S": lambda self: np.str_(self._block().decode("utf-8", "surrogatepass")),
        b"B": lambda self: np.bytes_(self._block()),
    }
