"""One run of the benchmark: every size, every contender, interleaved."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field

from gpucomm.bench import coded, worker
from gpucomm.bench.metrics import MEMORIES, ONE_THREAD, Result, elements_of
from gpucomm.bench.mpi import Mpi, Outcome
from gpucomm.bench.peers import peer, storage_of, ways
from gpucomm.files import own_folder
from gpucomm.launch import World, local

__all__ = ["Suite"]

_MOST_CALLS = 100_000


@dataclass(frozen=True)
class Suite:
    """What to measure.

    Attributes:
        collective: its name.
        ranks: how many processes.
        sizes: bytes of the whole buffer; each is rounded down to whole elements, the same for every rank.
        algorithms: of gpucomm.
        peers: the other libraries.
        memory: of our arrays, names of `metrics.MEMORIES`.
        pythons: the interpreters of peers that live in environments of their own, by name.
        dtype: of the elements.
        repeats: repetitions, of which the median counts; they rotate over the contenders.
        least_s: how long a repetition lasts at least, in as many calls as that takes.
        timeout: seconds that a collective may take.
        nodes: the ranks' nodes, as of `gpucomm.local`; None: one.
        links: slower ones to emulate between them, likewise.
        codec: of the algorithms of gpucomm that take one; then results are means, within its bound.
    """

    collective: str
    ranks: int
    sizes: tuple[int, ...]
    algorithms: tuple[str, ...]
    peers: tuple[str, ...]
    dtype: str
    repeats: int
    least_s: float
    timeout: float
    memory: tuple[str, ...] = ("private",)
    pythons: Mapping[str, str] = field(default_factory=dict)
    nodes: str | None = None
    links: str | None = None
    codec: str | None = None

    @property
    def contenders(self) -> list[tuple[str, str]]:
        """(library, algorithm) of those that run in our processes, ours first."""
        ours = [(MEMORIES[memory], algorithm) for memory in self.memory for algorithm in self.algorithms]
        return ours + [(name, way) for name in self.peers if not _outside(name) for way in ways(name)]

    @property
    def others(self) -> list[tuple[str, str]]:
        """(library, variant) of those that run in jobs of their own."""
        return [
            (name, variant)
            for name in self.peers
            if _outside(name)
            for variant, how in peer(name).VARIANTS.items()
            if not how.collectives or self.collective in how.collectives
        ]

    @property
    def steps(self) -> int:
        """How many times `run` yields without a result."""
        return len(self.sizes) * (len(self.contenders) * (1 + self.repeats) + len(self.others) * self.repeats)

    def run(self) -> Generator[Result | None, None, None]:
        """Measure; yields after every step, with a Result when one is complete.

        Raises:
            Error: a rank failed; the text has its traceback.
        """
        # The folder goes last: the ranks may still use it.
        with (
            own_folder("gpucomm-bench-") as folder,
            local(
                self.ranks, timeout=self.timeout, env=ONE_THREAD, nodes=self.nodes, links=self.links
            ) as world,
        ):
            inside = [name for name in self.peers if not _outside(name)]
            ours = [MEMORIES[memory] for memory in self.memory]
            transports = world.run(worker.begin, ours, inside, folder)[0]
            jobs = {name: self._library(name, folder) for name in self.peers if _outside(name)}
            for nbytes in self.sizes:
                yield from self._size(world, nbytes, transports, jobs)
            world.run(worker.end)

    def _library(self, name: str, folder: str) -> Mpi:
        return Mpi(name, peer(name).MARK, peer(name).VARIANTS, self.pythons.get(name), folder)

    def _size(
        self, world: World, nbytes: int, transports: dict[str, str], jobs: dict[str, Mpi]
    ) -> Iterator[Result | None]:
        itemsize = storage_of(self.dtype).itemsize
        count = elements_of(self.collective, nbytes, itemsize, self.ranks)
        world.run(worker.prepare, self.collective, self.contenders, count, self.dtype, self.codec)
        inside = range(len(self.contenders))
        everyone = self.contenders + self.others
        correct = [True] * len(everyone)
        times: list[list[float]] = [[] for _ in everyone]
        calls: list[int] = []
        for index in inside:
            library, algorithm = everyone[index]
            within = self._within(algorithm)
            correct[index] = all(world.run(worker.verify, self.collective, index, within))
            if algorithm == "auto" and self.ranks > 1:
                world.run(worker.settle, self.collective, index, library, self.codec)
            calls.append(self._calls(world, index))
            yield None
        for _ in range(self.repeats):
            for index, (library, variant) in enumerate(everyone):
                if index in inside:
                    some = calls[index]
                    times[index].append(max(world.run(worker.measure, index, some)) / some)
                else:
                    outcome = self._job(jobs[library], variant, count)
                    times[index].append(outcome.time_s)
                    correct[index] = correct[index] and outcome.correct
                yield None
        for index, (library, algorithm) in enumerate(everyone):
            transport = transports[library] if index in inside else jobs[library].transport
            who = (self.collective, library, algorithm, transport, self.ranks)
            what = (count * itemsize, self.dtype, tuple(times[index]), correct[index])
            codec = coded.codec_of(algorithm, self.codec) if library in MEMORIES.values() else None
            yield Result(*who, *what, codec)

    def _within(self, algorithm: str) -> float | None:
        if self.codec is None:
            return None
        return coded.within(self.codec, self.collective, algorithm, self.ranks, self.dtype)

    def _job(self, library: Mpi, variant: str, count: int) -> Outcome:
        job = {"collective": self.collective, "count": count, "dtype": self.dtype, "least_s": self.least_s}
        return library.run(variant, self.ranks, job, self.timeout)

    def _calls(self, world: World, index: int) -> int:
        """How many calls last `least_s`; also warms up. The better of two tries: a hiccup must not count."""
        calls = 1
        while True:
            spent = min(max(world.run(worker.measure, index, calls)) for _ in range(2))
            wanted = min(_MOST_CALLS, math.ceil(calls * self.least_s / spent))
            if spent >= self.least_s / 2 or wanted <= calls:
                return wanted
            calls = min(wanted, calls * 32)


def _outside(name: str) -> bool:
    """Whether a peer runs in jobs of its own."""
    return hasattr(peer(name), "VARIANTS")
