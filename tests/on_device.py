"""Devices for tests: how arrays come to them, and calls between work of the same stream before and after.

The same tests run on the host device and, in tests/gpu, on CUDA, whose arrays are torch's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpucomm import _core


def check_readable(capturing: set[int]) -> None:
    """As a GPU, for which nobody may wait as a whole while one of its streams is being captured."""
    assert not capturing, "an array is read while a stream of its device is being captured"


class HostKit:
    """A host device of its own, whatever the index.

    `deferred_us`: each piece of work starts after a pause of up to so long.
    Where the environment has UNSHARED_DEVICE there are no handles of its memory for other processes, where it
    has UNOPENED_DEVICE it cannot open theirs.
    """

    def __init__(self, deferred_us: int = 0, index: int = 0) -> None:
        self.device = _core.HostDevice(
            deferred_us, shares="UNSHARED_DEVICE" not in os.environ, opens="UNOPENED_DEVICE" not in os.environ
        )
        self.capturing: set[int] = set()

    def array(self, values: np.ndarray, dtype: str = "") -> Any:
        """Values as an array of this device; `dtype`: "bfloat16" where they are its bits."""
        return self.device.array(np.ascontiguousarray(values), dtype == "bfloat16")

    def host(self, array: Any) -> np.ndarray:
        """What is in an array now."""
        check_readable(self.capturing)
        return array.values

    def address(self, array: Any) -> int:
        return array.values.ctypes.data

    def enqueued(self, kind: str) -> int | None:
        """Pieces of work so far; None: not counted."""
        return self.device.enqueued(kind)

    def pause(self, stream: int) -> None:
        """The stream does nothing for a while: this device pauses by itself."""

    def begin_capture(self, stream: int) -> None:
        """What the stream gets from here on is kept for a graph."""
        self.device.begin_capture(stream)
        self.capturing.add(stream)

    def end_capture(self, stream: int) -> Any:
        """The graph; by the thread that began."""
        self.capturing.discard(stream)
        return self.device.end_capture(stream)

    def launch(self, graph: Any, stream: int) -> None:
        self.device.launch(graph, stream)


def sleep(device: Any, stream: int, seconds: int) -> None:
    """A stream of a host device, not the default one, does nothing for so long."""
    _call(stream, ctypes.CDLL(None).sleep, seconds)


def _call(stream: int, function: Any, argument: Any) -> None:
    types = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
    call = ctypes.CFUNCTYPE(None, *types)(_core.HostDevice.stream_function())
    call(stream, ctypes.cast(function, ctypes.c_void_p), argument)


_semaphores: list[Any] = []  # a stream may still look at one when held() has ended


@contextlib.contextmanager
def held(device: Any, stream: int) -> Iterator[None]:
    """A stream of a host device, not the default one, does nothing meanwhile."""
    semaphore, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)  # room for any sem_t
    _semaphores.append(semaphore)
    library.sem_init(semaphore, 0, 0)
    _call(stream, library.sem_wait, semaphore)
    try:
        yield
    finally:
        library.sem_post(semaphore)


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def wait_for(device: Any, event: int, timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while not device.done(event):
        assert time.monotonic() < deadline, "the device's work does not end"
        time.sleep(1e-4)


def finish(device: Any, stream: int = 0) -> None:
    """Waits for what a stream holds: for a send that nobody waits for, whose array must outlive it."""
    event = device.make_event()
    device.record(event, stream)
    wait_for(device, event)
    device.end_event(event)


@contextlib.contextmanager
def stream_of(kit: Any) -> Iterator[int]:
    stream = kit.device.make_stream()
    yield stream
    kit.device.end_stream(stream)


class Racing:
    """Arrays whose values the stream itself brings, and takes away after the call.

    A call that does not wait for its stream, or is not waited for, shows as wrong values.
    """

    def __init__(self, kit: Any, stream: int, dtype: str = "") -> None:
        self.kit, self.stream, self.dtype = kit, stream, dtype
        self.kept: list[Any] = []
        self.likes: dict[int, np.ndarray] = {}  # by the array's id: what has its shape and dtype

    def make(self, values: np.ndarray) -> Any:
        """An array that holds these values now."""
        array = self.kit.array(values, self.dtype)
        self.kept.append(array)
        self.likes[id(array)] = values
        return array

    def _copy(self, to: Any, source: Any, nbytes: int) -> None:
        self.kit.device.copy(self.kit.address(to), self.kit.address(source), nbytes, self.stream)

    def array(self, values: np.ndarray) -> Any:
        """An array that gets these values when the stream comes to it."""
        source, target = self.make(values.copy()), self.make(np.zeros_like(values))
        self.kit.pause(self.stream)
        self._copy(target, source, values.nbytes)
        return target

    def empty(self, shape: Any, dtype: Any) -> Any:
        """An array of zeros, for results."""
        return self.make(np.zeros(shape, dtype))

    def read(self, array: Any) -> Any:
        """What is there when the stream comes to it, for `found`; the stream then overwrites the array."""
        like = self.likes[id(array)] if id(array) in self.likes else self.kit.host(array)
        found, waste = (self.make(np.full_like(like, fill)) for fill in (0, 77))
        self._copy(found, array, like.nbytes)
        self._copy(array, waste, like.nbytes)
        return found

    def finish(self) -> None:
        finish(self.kit.device, self.stream)

    def found(self, reading: Any) -> np.ndarray:
        """What a reading found, once all is finished."""
        self.finish()
        return self.kit.host(reading)
