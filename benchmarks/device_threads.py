"""Collectives of ranks that are threads: their traffic, and what enqueuing them takes of the host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from device_kernels import CODED
from device_places import Host
from device_turns import Row, Section, Turns

import gpucomm
from gpucomm import _core

Call = Callable[[gpucomm.Communicator, int | None], object]
WORK = ("copy", "reduce", "encode", "decode", "decode_add_encode")


def collectives(turns: Turns) -> Iterator[Section]:
    """As they are called, and launched as a graph."""
    for world in (2, 4, 8):
        traffic = 2 * world * 4 * turns.count
        for algorithm, how in _all_reduces(world):
            call = _all_reduce(turns.sets[0][:world], algorithm, how)
            name = f"all_reduce {algorithm}, {world} ranks"
            yield name, _measured(turns, name, world, traffic, call)
        if world > 2:
            yield f"all_gather int4, {world} ranks", _all_gather(turns, world, "int4")


def _all_reduces(world: int) -> Iterator[tuple[str, dict[str, int]]]:
    if world > 2:
        yield "direct", {"segments": 1}
        yield "ring", {}
    yield "linear_pipeline", {"segments": 8}


def _all_reduce(arrays: list[Any], algorithm: str, how: dict[str, int]) -> Call:
    return lambda comm, stream: comm.all_reduce(
        arrays[comm.rank], "mean", algorithm=algorithm, stream=stream, **how
    )


def _all_gather(turns: Turns, world: int, codec: str) -> Iterator[Row]:
    """Each rank encodes its part and decodes all of them; nothing is forwarded."""
    part = turns.count // world
    parts = [turns.place.floats(part) for _ in range(world)]
    arrays = [turns.place.floats(part * world) for _ in range(world)]
    coded = int(part * CODED[codec])

    def call(comm: gpucomm.Communicator, stream: int | None) -> None:
        comm.all_gather(parts[comm.rank], out=arrays[comm.rank], codec=codec, stream=stream)

    traffic = world * (4 * part + coded + world * (coded + 4 * part))
    yield from _measured(turns, f"all_gather {codec}, {world} ranks", world, traffic, call)


def _measured(turns: Turns, name: str, world: int, traffic: int, call: Call) -> Iterator[Row]:
    with _ranks(world) as together:
        yield turns.row(name, traffic, lambda _: together(call))
        graph = turns.place.captured(lambda stream: together(call, stream))
        yield turns.row(f"{name}, graph", traffic, lambda _: graph())


@contextmanager
def _ranks(world: int) -> Iterator[Callable[..., list[Any]]]:
    """What has all ranks make a call, so many times one behind the other; it gives their seconds."""
    region = _core.Region(world)
    how = {"region": region, "timeout": 15}  # so that a section that fails leaves time to the others
    comms = [gpucomm.Communicator("local", rank, world, **how) for rank in range(world)]

    def seconds(comm: gpucomm.Communicator, call: Call, stream: int | None, times: int) -> float:
        begun = time.perf_counter()
        for _ in range(times):
            call(comm, stream)
        return time.perf_counter() - begun

    with ThreadPoolExecutor(world) as pool:
        yield lambda call, stream=None, times=1: list(
            pool.map(lambda comm: seconds(comm, call, stream, times), comms)
        )
    for comm in comms:
        comm.close()


@dataclass(frozen=True)
class Enqueued:
    """What a call takes of the host, while the device has little to do.

    Attributes:
        name: what was called.
        host_us: the median over the repetitions, a call.
        steps: kernels and copies that it enqueues for all ranks together.
        step_us: `host_us` over `steps`.
    """

    name: str
    host_us: float
    steps: int
    step_us: float


def enqueuings(place: Any, repeats: int, count: int = 16 << 10) -> Iterator[Section]:
    """Of all_reduces of 64 KiB, one behind the other, as they are called and launched as a graph."""
    for world in (4, 8):
        for algorithm, how in _all_reduces(world):
            name = f"all_reduce {algorithm}, {world} ranks"
            call_of = partial(_all_reduce, algorithm=algorithm, how=how)
            yield name, _enqueuing(place, repeats, name, world, count, call_of)


def _enqueuing(
    place: Any, repeats: int, name: str, world: int, count: int, call_of: Callable[[list[Any]], Call]
) -> Iterator[Enqueued]:
    call = call_of([place.floats(count) for _ in range(world)])
    steps = _steps(world, count, call_of)
    times = max(1, 512 // steps)  # far fewer than CUDA queues
    with _ranks(world) as together:
        yield _enqueued(place, name, steps, times, repeats, lambda n: max(together(call, times=n)))
        graph = place.captured(lambda stream: together(call, stream))
        yield _enqueued(place, f"{name}, graph", 1, times, repeats, lambda n: _launched(graph, n))


def _launched(graph: Callable[[], None], times: int) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        graph()
    return time.perf_counter() - begun


def _enqueued(
    place: Any, name: str, steps: int, times: int, repeats: int, run: Callable[[int], float]
) -> Enqueued:
    seconds = []
    for _ in range(repeats + 1):
        place.synchronize()
        seconds.append(run(times) / times)
    place.synchronize()
    host_us = statistics.median(seconds[1:]) * 1e6
    return Enqueued(name, host_us, steps, host_us / steps)


def _steps(world: int, count: int, call_of: Callable[[list[Any]], Call]) -> int:
    """Counted on a host device, which gets the same work."""
    host = Host()
    call = call_of([host.floats(count) for _ in range(world)])
    with _ranks(world) as together:
        together(call)
        host.synchronize()
    return sum(host.device.enqueued(kind) for kind in WORK)
