"""The figures of one group: overhead, latency and seconds a byte, from what plans take on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpucomm.comm import Communicator

__all__ = ["LinkFigures", "measure_group"]

_ELEMENT = 4  # float32
_SEGMENT = 64  # bytes: the least that a message is cut into
_BURST = 16  # messages one behind the other; what is more has to wait for room in shared memory
_FIRST, _LONGEST = 16 << 10, 1 << 20  # bytes of a long message: the first that is tried, the last
_SEGMENTED = 256 << 10  # bytes of a segment
_ENOUGH_S, _GROWN = 2e-3, 1.5  # a message that takes so long, and so many times one of a quarter
_SPEND_S, _IN_A_ROW = 6e-3, 4  # on one figure: seconds, and calls between two looks at the clock


class LinkFigures(NamedTuple):
    """What a message costs.

    Attributes:
        alpha: overhead, seconds that it occupies the port.
        latency: seconds until it is there, in which the next may follow.
        beta: seconds a byte.
    """

    alpha: float
    latency: float
    beta: float


def measure_group(comm: Communicator, gamma: float, timeout: float) -> LinkFigures:
    """Measures on all ranks of a communicator at once, each of which must call this.

    An all-reduce along a chain of p ranks and back in m segments takes 2(p-2+m)(alpha + b beta) +
    2(p-1) lambda (`gpucomm.cost.linear_pipeline_unfused`): with one segment that is alpha + lambda for each
    hop. Of two ranks, the slope over m tells alpha; of more, what a further peer adds to a one-shot
    all-reduce, (p-1) alpha + lambda. A long direct one, which fills both directions, takes 2(p-1)(m alpha +
    n/p beta) + 2 lambda + (p-1)n/p gamma: that tells beta.

    Args:
        comm: at least two ranks.
        gamma: seconds that a byte takes to be reduced.
        timeout: of each call, seconds.

    Returns:
        The figures as rank 0 saw them; those of other ranks mean nothing.
    """
    ranks = _Ranks(comm, timeout)
    hop_s = ranks.typical_s(ranks.chain(1)) / 2 / (comm.world - 1)
    alpha = max(_overhead(ranks, hop_s), hop_s / 100)
    latency = max(hop_s - alpha, 0.0)
    beta = _beta(ranks, alpha, latency, gamma)
    if comm.world == 2:
        alpha = max(alpha - _SEGMENT * beta, alpha / 10)  # the bytes of a burst
    return LinkFigures(alpha, latency, beta)


class _Ranks:
    """What the ranks of a group do together, and for how long."""

    def __init__(self, comm: Communicator, timeout: float) -> None:
        self.world, self._comm, self._timeout = comm.world, comm, timeout

    def chain(self, segments: int) -> Callable[[], Any]:
        return self._reducing(segments * _SEGMENT, "linear_pipeline_unfused", segments)

    def one_shot(self) -> Callable[[], Any]:
        return self._reducing(_ELEMENT, "one_shot", 1)

    def direct(self, nbytes: int) -> Callable[[], Any]:
        return self._reducing(nbytes, "direct", _segments(nbytes))

    def _reducing(self, nbytes: int, algorithm: str, segments: int) -> Callable[[], Any]:
        reduce, x, timeout = self._comm.all_reduce, np.zeros(nbytes // _ELEMENT, np.float32), self._timeout
        return lambda: reduce(x, algorithm=algorithm, segments=segments, timeout=timeout)

    def typical_s(self, call: Callable[[], Any]) -> float:
        """Seconds of a call that follows its like; for how long they are made, rank 0 decides.

        The lowest decile: what else the machine does only ever adds.
        """
        times: list[float] = []
        end = time.perf_counter() + _SPEND_S
        while not times or self.agreed(time.perf_counter() < end):
            times += _seconds(call, _IN_A_ROW)
        return float(np.quantile(times, 0.1))

    def agreed(self, value: float) -> float:
        """Rank 0's."""
        told = np.array([value], np.float64)
        self._comm.broadcast(told, algorithm="binomial_tree", segments=1, timeout=self._timeout)
        return float(told[0])


def _overhead(ranks: _Ranks, hop_s: float) -> float:
    if ranks.world == 2:
        return (ranks.typical_s(ranks.chain(_BURST)) / 2 - hop_s) / (_BURST - 1)
    return (ranks.typical_s(ranks.one_shot()) - hop_s) / (ranks.world - 2)


def _beta(ranks: _Ranks, alpha: float, latency: float, gamma: float) -> float:
    """Of the shortest message whose bytes show; how long it is, rank 0 decides."""
    nbytes = _FIRST
    shorter_s = taken_s = min(_seconds(ranks.direct(nbytes), 2))
    while nbytes < _LONGEST and not ranks.agreed(taken_s > max(_ENOUGH_S, _GROWN * shorter_s)):
        nbytes *= 4
        shorter_s, taken_s = taken_s, min(_seconds(ranks.direct(nbytes), 2))
    taken_s = ranks.typical_s(ranks.direct(nbytes))
    others = ranks.world - 1
    share = nbytes * others / ranks.world  # goes out, and comes in to be folded
    besides_s = 2 * others * _segments(nbytes) * alpha + 2 * latency + share * gamma
    # At least a tenth, also where the short ones took unduly long.
    return max(taken_s - besides_s, taken_s / 10) / (2 * share)


def _segments(nbytes: int) -> int:
    return max(1, nbytes // _SEGMENTED)


def _seconds(call: Callable[[], Any], count: int) -> list[float]:
    """Of each call, after one that does not count."""
    call()
    stamps = [time.perf_counter()]
    for _ in range(count):
        call()
        stamps.append(time.perf_counter())
    return list(np.diff(stamps))
