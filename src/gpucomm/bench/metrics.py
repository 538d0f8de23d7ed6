"""What a measured time means, by the conventions of nccl-tests, and the rows that the benchmark writes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpucomm.kinds import BY_RANK

__all__ = ["COLLECTIVES", "MEMORIES", "ONE_THREAD", "Result", "busbw_factor", "elements_of", "p95"]

COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")
# Our library's name on arrays in each kind of memory.
MEMORIES = {"private": "gpucomm", "huge_pages": "gpucomm, huge pages", "shared": "gpucomm.empty"}
# The environment of a rank: libraries that start more threads would take the cores of the other ranks.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def busbw_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth: what the busiest link carries, over the size of the buffer.

    2(p-1)/p for all_reduce, 1 for broadcast and reduce, (p-1)/p for the others.
    """
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if collective in BY_RANK else 1.0


def elements_of(collective: str, nbytes: int, itemsize: int, ranks: int) -> int:
    """Elements of the whole buffer that is nearest below `nbytes`: at least one, or one for each rank.

    The whole buffer is the array for all_reduce, reduce, broadcast and all_to_all; what all ranks have
    together for all_gather and gather (the result), reduce_scatter and scatter (the argument).
    """
    parts = ranks if collective in BY_RANK else 1
    return max(1, nbytes // itemsize // parts) * parts


def p95(values: Sequence[float]) -> float:
    """The 95th percentile, by the nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -(-95 * len(ordered) // 100) - 1)]


@dataclass(frozen=True)
class Result:
    """One line of the benchmark: one library and algorithm at one size.

    Attributes:
        collective, library, algorithm, transport: who did what.
        ranks: number of processes.
        nbytes: size of the whole buffer.
        dtype: name of its elements' type.
        times_s: seconds a call, of each repetition: the slowest rank's.
        correct: whether every rank had the expected result, bit for bit or, in a run with a codec, within
            its bound.
        codec: that it took or, "auto", might take.
    """

    collective: str
    library: str
    algorithm: str
    transport: str
    ranks: int
    nbytes: int
    dtype: str
    times_s: tuple[float, ...]
    correct: bool
    codec: str | None = None

    @property
    def median_s(self) -> float:
        """The median of the repetitions."""
        return statistics.median(self.times_s)

    @property
    def algbw(self) -> float:
        """Bytes of the buffer a second, in GB/s (10^9)."""
        return self.nbytes / self.median_s / 1e9

    @property
    def busbw(self) -> float:
        """The share of them that the busiest link carries, in GB/s (10^9)."""
        return self.algbw * busbw_factor(self.collective, self.ranks)

    def row(self) -> dict[str, Any]:
        """The row for machines; the codec is "none" where nothing is compressed."""
        return {
            "collective": self.collective,
            "library": self.library,
            "algorithm": self.algorithm,
            "codec": self.codec or "none",
            "transport": self.transport,
            "ranks": self.ranks,
            "bytes": self.nbytes,
            "dtype": self.dtype,
            "time_us": self.median_s * 1e6,
            "algbw_GBps": self.algbw,
            "busbw_GBps": self.busbw,
            "correct": self.correct,
        }
