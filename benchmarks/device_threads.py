"""Collectives of ranks that are threads, against what their plans move, and what they take of the host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from device_kernels import coded_bytes
from device_places import Host
from device_turns import Row, Section, Turns

import gpucomm
from gpucomm import _core

Call = Callable[[gpucomm.Communicator, int | None], object]
WORK = ("copy", "reduce", "encode", "decode", "recode")


def collectives(turns: Turns) -> Iterator[Section]:
    """As they are called, and launched as a graph."""
    for world in (2, 4, 8):
        for algorithm, how in _all_reduces(world):
            call = _all_reduce(turns.sets[0][:world], algorithm, how)
            traffic = _moved(algorithm, world) * 4 * turns.count
            name = f"all_reduce {algorithm}, {world} ranks"
            yield name, _measured(turns, name, world, traffic, call)
        if world > 2:
            yield f"all_gather int4, {world} ranks", _all_gather(turns, world, "int4")
            yield f"all_reduce int8, {world} ranks", _coded_all_reduce(turns, world, "int8")


def _all_reduces(world: int) -> Iterator[tuple[str, dict[str, int]]]:
    if world > 2:
        yield "direct", {"segments": 1}
        yield "ring", {}
    yield "linear_pipeline", {"segments": 8}


def _moved(algorithm: str, world: int) -> int:
    """Messages read and written by the plan, of all ranks.

    Each of `direct` reads its part of all arrays and writes it to all; in the others each hop folds, two read
    and one written, and each hop back copies.
    """
    return 2 * world if algorithm == "direct" else 5 * (world - 1)


def _all_reduce(arrays: list[Any], algorithm: str, how: dict[str, int]) -> Call:
    return lambda comm, stream: comm.all_reduce(
        arrays[comm.rank], "mean", algorithm=algorithm, stream=stream, **how
    )


def _all_gather(turns: Turns, world: int, codec: str) -> Iterator[Row]:
    """Each rank encodes its part and decodes all of them; nothing is forwarded."""
    part = turns.count // world
    parts = [turns.place.floats(part) for _ in range(world)]
    arrays = [turns.place.floats(part * world) for _ in range(world)]
    coded = coded_bytes(codec, part)

    def call(comm: gpucomm.Communicator, stream: int | None) -> None:
        comm.all_gather(parts[comm.rank], out=arrays[comm.rank], codec=codec, stream=stream)

    traffic = world * (4 * part + coded + world * (coded + 4 * part))
    yield from _measured(turns, f"all_gather {codec}, {world} ranks", world, traffic, call)


def _coded_all_reduce(turns: Turns, world: int, codec: str) -> Iterator[Row]:
    """Partial sums go round the ring, coded anew at each hop; then as in an all_gather."""
    arrays = turns.sets[0][:world]
    dense = 4 * (turns.count // world)
    coded = coded_bytes(codec, turns.count // world)

    def call(comm: gpucomm.Communicator, stream: int | None) -> None:
        comm.all_reduce(arrays[comm.rank], "mean", codec=codec, algorithm="coded_ring", stream=stream)

    folded = (dense + coded) + (world - 2) * (dense + 2 * coded) + (2 * dense + coded)
    gathered = (dense + coded) + world * (coded + dense)
    traffic = world * (folded + gathered)
    yield from _measured(turns, f"all_reduce {codec}, {world} ranks", world, traffic, call)


def _measured(turns: Turns, name: str, world: int, traffic: int, call: Call) -> Iterator[Row]:
    with _ranks(world) as together:
        yield turns.row(name, traffic, lambda _: together(call))
        graph = turns.place.captured(lambda stream: together(call, stream))
        yield turns.row(f"{name}, graph", traffic, lambda _: graph())


class _Together:
    """Has all ranks make a call, so many times one behind the other; gives their seconds."""

    def __init__(self, comms: list[gpucomm.Communicator], pool: ThreadPoolExecutor) -> None:
        self._comms, self._pool = comms, pool

    def __call__(self, call: Call, stream: int | None = None, times: int = 1) -> list[float]:
        def seconds(comm: gpucomm.Communicator) -> float:
            begun = time.perf_counter()
            for _ in range(times):
                call(comm, stream)
            return time.perf_counter() - begun

        return list(self._pool.map(seconds, self._comms))

    def enqueuing_s(self) -> list[float]:
        """By rank, what it has taken so far to enqueue the work of all."""
        return [comm.stats()["enqueuing_s"] for comm in self._comms]


@contextmanager
def _ranks(world: int) -> Iterator[_Together]:
    region = _core.Region(world)
    how = {"region": region, "timeout": 15}  # so that a section that fails leaves time to the others
    comms = [gpucomm.Communicator("local", rank, world, **how) for rank in range(world)]
    with ThreadPoolExecutor(world) as pool:
        yield _Together(comms, pool)
    for comm in comms:
        comm.close()


@dataclass(frozen=True)
class Enqueued:
    """What a call takes of the host, while the device has little to do.

    Attributes:
        name: what was called.
        call_us: the median over the repetitions, a call: with the turns that Python's threads take.
        enqueuing_us: what that rank takes of it which enqueues the work of all.
        steps: kernels and copies that it enqueues.
        step_us: `enqueuing_us` over `steps`.
    """

    name: str
    call_us: float
    enqueuing_us: float
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

        def run() -> tuple[float, float]:
            before = sum(together.enqueuing_s())
            seconds = max(together(call, times=times)) / times
            return seconds, (sum(together.enqueuing_s()) - before) / times

        yield _enqueued(place, name, steps, repeats, run)
        graph = place.captured(lambda stream: together(call, stream))
        yield _enqueued(place, f"{name}, graph", 1, repeats, lambda: _launched(graph, times))


def _launched(graph: Callable[[], None], times: int) -> tuple[float, float]:
    begun = time.perf_counter()
    for _ in range(times):
        graph()
    seconds = (time.perf_counter() - begun) / times
    return seconds, seconds


def _enqueued(
    place: Any, name: str, steps: int, repeats: int, run: Callable[[], tuple[float, float]]
) -> Enqueued:
    seconds = []
    for _ in range(repeats + 1):
        place.synchronize()
        seconds.append(run())
    place.synchronize()
    call_us, enqueuing_us = (statistics.median(each) * 1e6 for each in zip(*seconds[1:], strict=True))
    return Enqueued(name, call_us, enqueuing_us, steps, enqueuing_us / steps)


def _steps(world: int, count: int, call_of: Callable[[list[Any]], Call]) -> int:
    """Counted on a host device, which gets the same work."""
    host = Host()
    call = call_of([host.floats(count) for _ in range(world)])
    with _ranks(world) as together:
        together(call)
        host.synchronize()
    return sum(host.device.enqueued(kind) for kind in WORK)
