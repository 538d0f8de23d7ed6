"""How benchmarks/device.py measures: things in turns with a copy, each on buffers that no cache holds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

ROTATED = 3  # sets of buffers
INPUTS = 8
RESULT, SLOT = INPUTS, INPUTS + 1

Section = tuple[str, Iterator[Any]]  # a name, and its rows: what fails in one leaves the others


@dataclass(frozen=True)
class Row:
    """A measurement.

    Attributes:
        name: what ran.
        traffic_bytes: read plus written, at the least.
        time_us: the median.
        GBps: traffic over time.
        of_floor: the time of a copy of that traffic over `time_us`; 1 is the floor.
    """

    name: str
    traffic_bytes: int
    time_us: float
    GBps: float
    of_floor: float

    @classmethod
    def of(cls, name: str, traffic: int, seconds: float, ceiling: float) -> Row:
        """`ceiling`: bytes a second of a copy, read plus written."""
        rate = traffic / seconds
        return cls(name, traffic, seconds * 1e6, rate * 1e-9, rate / ceiling)


class Turns:
    """Runs things in turns with the copy that is their ceiling."""

    def __init__(self, place: Any, nbytes: int, repeats: int) -> None:
        self.place, self.count, self.repeats = place, nbytes // 4, repeats
        # inputs of folds and codings, which nothing writes; then a result, and a coded message
        self.sets = [[place.floats(self.count) for _ in range(INPUTS + 2)] for _ in range(ROTATED)]
        self.ceiling = statistics.median(self._copy(i) for i in range(repeats))

    def _copy(self, turn: int) -> float:
        """Bytes a second of a copy, read plus written."""
        at = self.addresses(turn)
        seconds = self.place.timed(lambda: self.place.device.copy(at[RESULT], at[0], 4 * self.count))
        return 2 * 4 * self.count / seconds

    def addresses(self, turn: int) -> list[int]:
        """Of the set whose turn it is."""
        return [self.place.address(x) for x in self.sets[turn % ROTATED]]

    def row(self, name: str, traffic: int, work: Callable[[list[int]], object]) -> Row:
        """Measures what `work` enqueues on the addresses of a set of buffers.

        Raises:
            RuntimeError: the device has failed in it, which otherwise the next call on the device tells.
        """
        ceilings, times = [], []
        for turn in range(self.repeats + 1):
            addresses = self.addresses(turn)
            ceilings.append(self._copy(turn))
            times.append(self.place.timed(lambda places=addresses: work(places)))
        if why := self.place.device.failure():
            raise RuntimeError(f"{name}: {why}")
        return Row.of(name, traffic, statistics.median(times[1:]), statistics.median(ceilings[1:]))
