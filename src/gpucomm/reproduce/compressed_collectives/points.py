"""The messages, links and codecs that are measured. Rates are pinned: c is what the machine makes of them.

c, the time to encode and decode the message of one hop, all ranks at once, over its time on the wire, is
measured beside every figure. The rates were chosen once, on 2 cores, so that c of the headline is 0.8 to 1.1.
"""

from __future__ import annotations

from typing import NamedTuple

from gpucomm import _core
from gpucomm.reproduce.run import Cell, Run

__all__ = ["HEADLINE_C", "MIB", "Point", "points"]

MIB = 1 << 20
HEADLINE_C = (0.8, 1.1)  # for which the paper's figures are the goals
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


# ranks, MiB, MB/s, codec
_HEADLINE = {"all_gather": (8, 64, 270, "int4"), "reduce_scatter": (8, 64, 200, "int4")}
_QUICK = ((4, 16, 100, "int4"),)
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


def points(run: Run, collective: str) -> list[Point]:
    """The points of a collective, the headline first."""
    rest = _QUICK if run.quick else _FULL
    return [_point(run, *_HEADLINE[collective], headline=True), *(_point(run, *some) for some in rest)]


def _point(run: Run, ranks: int, mib: int, rate: float, codec: str, headline: bool = False) -> Point:
    nbytes = mib * MIB
    cell = run.cell("switch", nbytes, nbytes / (rate * 1e6) / _ALPHA_S, _ALPHA_S)
    return Point(ranks, cell, codec, headline)
