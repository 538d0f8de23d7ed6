"""Calls on arrays of a host device, between work of the same stream before and after."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpucomm import _core


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def wait_for(device: Any, event: int, timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while not device.done(event):
        assert time.monotonic() < deadline, "the device's work does not end"
        time.sleep(1e-4)


@contextlib.contextmanager
def stream_of(device: Any) -> Iterator[int]:
    stream = device.make_stream()
    yield stream
    device.end_stream(stream)


class Racing:
    """Arrays whose values the stream itself brings, and takes away after the call.

    A call that does not wait for its stream, or is not waited for, shows as wrong values.
    """

    def __init__(self, device: Any, stream: int, dtype: str = "float32") -> None:
        self.device, self.stream, self.bfloat16 = device, stream, dtype == "bfloat16"
        self.kept: list[np.ndarray] = []

    def array(self, values: np.ndarray) -> Any:
        """An array that gets these values when the stream comes to it."""
        source, target = np.ascontiguousarray(values).copy(), np.zeros_like(values)
        self.kept += [source, target]
        self.device.copy(address(target), address(source), source.nbytes, self.stream)
        return self.device.array(target, self.bfloat16)

    def empty(self, shape: Any, dtype: Any) -> Any:
        """An array of zeros, for results."""
        self.kept.append(np.zeros(shape, dtype))
        return self.device.array(self.kept[-1], self.bfloat16)

    def read(self, array: Any) -> np.ndarray:
        """What is there when the stream comes to it; the stream then overwrites the array."""
        found, waste = np.empty_like(array.values), np.full_like(array.values, 77)
        self.device.copy(address(found), address(array.values), found.nbytes, self.stream)
        self.device.copy(address(array.values), address(waste), waste.nbytes, self.stream)
        self.kept += [found, waste]
        return found

    def finish(self) -> None:
        event = self.device.make_event()
        self.device.record(event, self.stream)
        wait_for(self.device, event)
        self.device.end_event(event)


def device(deferred_us: int = 0) -> Any:
    return _core.HostDevice(deferred_us)
