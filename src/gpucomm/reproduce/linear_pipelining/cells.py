"""The sizes and links that are measured: x = n beta / alpha from 10 to 6000, 64 KiB to 64 MiB.

Each alpha is so that a call takes tens of milliseconds at least, so that the links are measured and not the
machine, and so that all links together stay below what its memory can do.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpucomm import cost
from gpucomm.reproduce.run import Call, Cell, Run

__all__ = ["KIB", "MIB", "MOST_RANKS", "cells", "pipeline"]

KIB, MIB = 1 << 10, 1 << 20
MOST_RANKS = 8

_FULL = {
    10: (64 * KIB, 2e-3),
    54: (1 * MIB, 1e-3),
    200: (4 * MIB, 1e-3),
    500: (4 * MIB, 0.5e-3),
    1074: (8 * MIB, 0.8e-3),
    1200: (16 * MIB, 1e-3),
    2400: (16 * MIB, 0.3e-3),
    5000: (16 * MIB, 0.2e-3),
    6000: (64 * MIB, 0.4e-3),
}
_QUICK = _FULL | {
    500: (2 * MIB, 0.25e-3),
    1074: (4 * MIB, 0.2e-3),
    2000: (4 * MIB, 0.15e-3),
    5000: (8 * MIB, 0.08e-3),
}


def cells(run: Run, kind: str, quick: Sequence[int], full: Sequence[int]) -> list[Cell]:
    """The cells of these x: `quick` where the run is quick, else `full`."""
    found = []
    for x in quick if run.quick else full:
        nbytes, alpha = (_QUICK if run.quick else _FULL)[x]
        found.append(run.cell(kind, nbytes, x, alpha))
    return found


def pipeline(collective: str, algorithm: str, ranks: int, cell: Cell) -> Call:
    """A call by a linear pipeline, with the segments that are best by the paper's formula."""
    segments = cost.best_segments(ranks, cell.nbytes, cell.model, collective, algorithm)
    return Call(collective, algorithm, segments)
