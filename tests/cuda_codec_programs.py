"""The programs of the CUDA codecs on the host: built with the compiler of this machine, called by ctypes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from codec_samples import Array, storage
from compiled import shared_object

from gpucomm import _core

__all__ = ["DTYPES", "GUARD", "HEADER", "ROOT", "Programs", "build", "guards_hold", "placed", "slot_of"]

ROOT = Path(__file__).parent.parent
HEADER = 8
GUARD = 0xA5  # in bytes that nobody may write
# in the order of Dtype
DTYPES = ["float64", "float32", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool"]
DTYPES += ["uint16", "uint32", "uint64", "complex64", "complex128"]


def build(factory: pytest.TempPathFactory) -> Path:
    """The shared object of the programs."""
    sources = [ROOT / "tests" / "cuda_programs" / "host.cpp", ROOT / "src" / "cpp" / "cuda" / "status.cpp"]
    return shared_object(factory, "programs.so", sources, ["-O1", f"-I{ROOT / 'src' / 'cpp'}"])


class Call(ctypes.Structure):
    """As `struct Call` of host.cpp."""

    _fields_ = [
        ("spec", ctypes.c_char_p),
        ("op", ctypes.c_char_p),
        *[(name, ctypes.c_uint) for name in ["dtype", "adds", "divisor", "seed"]],
        *[(name, ctypes.c_uint64) for name in ["count", "coded_bytes", "room"]],
        *[(name, ctypes.c_void_p) for name in ["dense", "slot", "other"]],
        *[(name, ctypes.c_uint64) for name in ["wrong", "status", "reports"]],
    ]


def slot_of(stream: Array, room: int) -> Array:
    """Room for a header and `room` bytes, 8-byte aligned, with the stream in it."""
    slot = np.full((HEADER + room + 15) // 8, 0, np.uint64).view(np.uint8)
    slot[:] = GUARD
    slot[:HEADER].view(np.uint64)[0] = len(stream)
    slot[HEADER : HEADER + len(stream)] = stream
    return slot


def placed(x: Array, shift: int) -> Array:
    """A copy of x that starts `shift` elements behind a multiple of 64 bytes, guards around it."""
    memory = np.full(x.nbytes + 256, GUARD, np.uint8)
    begin = -memory.ctypes.data % 64 + 64 + shift * x.itemsize
    copy = memory[begin : begin + x.nbytes].view(x.dtype)
    copy[:] = x
    return copy


def guards_hold(x: Array) -> bool:
    """Whether nobody wrote around what placed() gave."""
    memory = x.base
    assert isinstance(memory, np.ndarray)
    begin = x.ctypes.data - memory.ctypes.data
    return bool(np.all(memory[:begin] == GUARD) and np.all(memory[begin + x.nbytes :] == GUARD))


class Programs:
    """Of one codec and dtype. Seed 0 runs the lanes in order, another in a random order in each phase."""

    def __init__(self, library: Path, codec: _core.Codec, dtype: str, seed: int = 0) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.describe.restype = ctypes.c_char_p
        self.codec, self.dtype, self.seed = codec, dtype, seed
        self.status = self.reports = 0

    def call(self, op: str, dense: Array, slot: Array, other: Array | None = None, **more: int) -> None:
        """Runs one program over its memory, which it must not leave; what it reports stays here."""
        call = Call(self.codec.spec.encode(), op.encode(), DTYPES.index(self.dtype), seed=self.seed, **more)
        call.count, call.coded_bytes = len(dense), self.codec.max_bytes(len(dense), self.dtype)
        call.room = HEADER + call.coded_bytes
        call.dense, call.slot = dense.ctypes.data, slot.ctypes.data
        call.other = None if other is None else other.ctypes.data
        before = dense.tobytes()
        self.library.run_program(ctypes.byref(call))
        assert call.wrong == 0, "accesses outside the memory, or not aligned"
        assert guards_hold(dense)
        assert op == "decode" or dense.tobytes() == before
        for memory in [slot, other]:
            assert memory is None or np.all(memory[call.room :] == GUARD)
        self.status, self.reports = call.status, call.reports

    def text(self) -> str:
        """What the status says."""
        said: bytes = self.library.describe(ctypes.c_uint64(self.status))
        return said.decode()

    def room(self, count: int) -> int:
        """Coded bytes of so many elements."""
        return int(self.codec.max_bytes(count, self.dtype))

    def stream(self, slot: Array) -> Array:
        """The coded bytes in a slot."""
        return slot[HEADER : HEADER + int(slot[:HEADER].view(np.uint64)[0])]

    def encode(self, x: Array, shift: int = 0) -> Array:
        """The coded bytes of x."""
        slot = slot_of(np.zeros(0, np.uint8), self.room(len(x)))
        self.call("encode", placed(x, shift), slot)
        return self.stream(slot)

    def decode(self, stream: Array, start: Array, shift: int = 0, **more: int) -> Array:
        """The decoded elements; `start` lies where they are written."""
        dense = placed(start, shift)
        self.call("decode", dense, slot_of(stream, self.room(len(start))), **{"divisor": 1, **more})
        return dense

    def fused(self, stream: Array, own: Array, shift: int = 0) -> Array:
        """The coded sum of a stream and dense elements."""
        room = self.room(len(own))
        slot, other = slot_of(stream, room), slot_of(np.zeros(0, np.uint8), room)
        self.call("fused", placed(own, shift), slot, other)
        return self.stream(other)

    def add(self, stream: Array, into: Array, count: int) -> Array:
        """The sum of two streams."""
        slot, other = slot_of(stream, len(into)), slot_of(into, len(into))
        self.call("add", placed(np.zeros(count, storage(self.dtype)), 0), slot, other)
        return self.stream(other)
