"""The messages, links and codecs that are measured.

c, what coding adds to a hop over its time on the wire, is measured beside every figure. Rates are pinned, and
c is what the machine makes of them; only that of the headline, whose goals are for a c of 0.8 to 1.1, follows
from what a hop takes on pinned links, by a rule that is pinned too, but for a quick run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log
from typing import NamedTuple

from gpucomm import _core, cost
from gpucomm.reproduce.run import Cell, Run

__all__ = [
    "FIRST_RATE",
    "HEADLINE_C",
    "MIB",
    "Point",
    "headline",
    "headline_rate",
    "next_rate",
    "off_headline",
    "points",
]

MIB = 1 << 20
HEADLINE_C = (0.8, 1.1)  # for which the paper's figures are the goals
_WANTED_C, _LEAST_C = sum(HEADLINE_C) / 2, 1e-2
FIRST_RATE, _RATES, _TRIALS = 120.0, (10.0, 1000.0), 4  # MB/s
_HEADER_BYTES = 8  # of a coded message
_ALPHA_S = 5e-6  # as of InfiniBand, which the paper's machines have


class Point(NamedTuple):
    """A world, a message, the links under it, and a codec.

    Attributes:
        ranks: how many.
        cell: the message of all ranks together, float32, and the links.
        codec: a spec.
        headline: whether the paper's figures are the goals.
    """

    ranks: int
    cell: Cell
    codec: str
    headline: bool = False

    @property
    def part_bytes(self) -> int:
        """Of each rank's part."""
        return self.cell.nbytes // self.ranks

    @property
    def coded_bytes(self) -> int:
        """Of a part as a coded message."""
        return _core.Codec(self.codec).max_bytes(self.part_bytes // 4) + _HEADER_BYTES

    @property
    def wire_s(self) -> float:
        """Seconds of one hop of a coded part."""
        links = self.cell.model
        return float(links.alpha + self.coded_bytes * links.beta)

    def coding(self, hop_s: float) -> cost.Coding:
        """The codec as the cost model takes it, where coding a part takes a hop so many seconds."""
        half = hop_s / 2 / self.part_bytes
        return cost.Coding(self.coded_bytes / self.part_bytes, half, half)


# ranks, MiB, MB/s, codec
_QUICK = ((4, 4, 60, "int4"),)
_FULL = (
    (8, 1, 15, "int4"),
    (8, 4, 30, "int4"),
    (8, 16, 60, "int4"),
    (8, 16, 150, "int4"),
    (8, 64, 150, "int4"),
    (4, 1, 30, "int4"),
    (4, 4, 60, "int4"),
    (4, 16, 150, "int4"),
    (4, 16, 300, "int4"),
    (4, 64, 600, "int4"),
    (8, 4, 30, "zfp:4"),
    (8, 16, 30, "zfp:4"),
)


def headline(run: Run, rate: float) -> Point:
    """The point whose goals are the paper's figures, on links of so many MB/s."""
    return _point(run, 8, 16 if run.quick else 64, rate, "int4", wanted=True)


def headline_rate(c_on: Callable[[float], float]) -> float:
    """MB/s on which c is in the middle of what is wanted, as nearly as a few trials find.

    Args:
        c_on: measures c on links of so many MB/s. It grows with the rate: in proportion where every rank has
            a core, faster where some code while others wait for the wire.
    """
    rate, tried = FIRST_RATE, {}
    for _ in range(_TRIALS):
        tried[rate] = c_on(rate)
        if off_headline(tried[rate]) < 0.1:
            return rate
        rate = next_rate(tried)
    return min(tried, key=lambda rate: off_headline(tried[rate]))


def off_headline(c: float) -> float:
    """How far c is off the middle of what is wanted: the logarithm of their ratio, without its sign."""
    return abs(log(max(c, _LEAST_C) / _WANTED_C))


def next_rate(tried: Mapping[float, float]) -> float:
    """MB/s to try next where these gave such c.

    On the line, of logarithms, through the two rates around what is wanted; else in proportion.
    """
    nearest, *others = sorted(tried, key=lambda rate: off_headline(tried[rate]))
    c, power = max(tried[nearest], _LEAST_C), 1.0
    for other in others:
        if (tried[other] - _WANTED_C) * (c - _WANTED_C) < 0:
            power = log(max(tried[other], _LEAST_C) / c) / log(other / nearest)
            break
    rate = nearest * (_WANTED_C / c) ** (1 / max(power, 1.0))
    return float(f"{min(max(rate, _RATES[0]), _RATES[1]):.2g}")


def points(run: Run) -> list[Point]:
    """All other points of a collective."""
    return [_point(run, *some) for some in (_QUICK if run.quick else _FULL)]


def _point(run: Run, ranks: int, mib: int, rate: float, codec: str, wanted: bool = False) -> Point:
    nbytes = mib * MIB
    cell = run.cell("switch", nbytes, nbytes / (rate * 1e6) / _ALPHA_S, _ALPHA_S)
    return Point(ranks, cell, codec, wanted)
