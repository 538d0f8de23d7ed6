"""One run of the benchmark: every size, every contender, interleaved."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from gpucomm.bench import worker
from gpucomm.bench.metrics import Result, elements_of
from gpucomm.launch import World, local

__all__ = ["Suite"]

_MOST_CALLS = 100_000
# One thread a rank: libraries that start more would take the cores of the other ranks.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Suite:
    """What to measure.

    Attributes:
        collective: its name.
        ranks: how many processes.
        sizes: bytes of the whole buffer; each is rounded down to whole elements, the same for every rank.
        algorithms: of gpucomm.
        peers: the other libraries.
        dtype: of the elements.
        repeats: repetitions, of which the median counts; they rotate over the contenders.
        least_s: how long a repetition lasts at least, in as many calls as that takes.
        timeout: seconds that a collective may take.
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

    @property
    def contenders(self) -> list[tuple[str, str]]:
        """(library, algorithm), ours first."""
        ours = [("gpucomm", algorithm) for algorithm in self.algorithms]
        return ours + [(peer, "default") for peer in self.peers]

    @property
    def steps(self) -> int:
        """How many times `run` yields."""
        return len(self.sizes) * len(self.contenders) * (1 + self.repeats)

    def run(self) -> Generator[Result | None, None, None]:
        """Measure; yields after every step, with a Result when one is complete.

        Raises:
            Error: a rank failed; the text has its traceback.
        """
        # The folder goes last: the ranks may still use it.
        with (
            tempfile.TemporaryDirectory(prefix="gpucomm-bench-") as folder,
            local(self.ranks, timeout=self.timeout, env=_ENVIRONMENT) as world,
        ):
            transports = world.run(worker.begin, list(self.peers), folder)[0]
            for nbytes in self.sizes:
                yield from self._size(world, nbytes, transports)
            world.run(worker.end)

    def _size(self, world: World, nbytes: int, transports: dict[str, str]) -> Iterator[Result | None]:
        itemsize = np.dtype(self.dtype).itemsize
        count = elements_of(self.collective, nbytes, itemsize, self.ranks)
        world.run(worker.prepare, self.collective, self.contenders, count, self.dtype)
        correct: list[bool] = []
        calls: list[int] = []
        for index in range(len(self.contenders)):
            correct.append(all(world.run(worker.verify, self.collective, index)))
            calls.append(self._calls(world, index))
            yield None
        times: list[list[float]] = [[] for _ in self.contenders]
        for _ in range(self.repeats):
            for index, some in enumerate(calls):
                times[index].append(max(world.run(worker.measure, index, some)) / some)
                yield None
        for index, (library, algorithm) in enumerate(self.contenders):
            who = (self.collective, library, algorithm, transports[library], self.ranks)
            yield Result(*who, count * itemsize, self.dtype, tuple(times[index]), correct[index])

    def _calls(self, world: World, index: int) -> int:
        """How many calls last `least_s`; also warms up. The better of two tries: a hiccup must not count."""
        calls = 1
        while True:
            spent = min(max(world.run(worker.measure, index, calls)) for _ in range(2))
            wanted = min(_MOST_CALLS, math.ceil(calls * self.least_s / spent))
            if spent >= self.least_s / 2 or wanted <= calls:
                return wanted
            calls = min(wanted, calls * 32)
