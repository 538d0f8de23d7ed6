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


def measure_group(comm: Communicator, gamma: float) -> LinkFigures:
    """Measures on all ranks of a communicator at once, each of which must call this.

    An all-reduce along a chain of p ranks and back in m segments takes 2(p-2+m)(alpha + b beta) +
    2(p-1) lambda (`gpucomm.cost.linear_pipeline_unfused`): with one segment that is alpha + lambda for each
    hop. Of two ranks, the slope over m tells alpha; of more, what a further peer adds to a one-shot
    all-reduce, (p-1) alpha + lambda. A long direct one, which fills both directions, takes 2(p-1)(m alpha +
    n/p beta) + 2 lambda + (p-1)n/p gamma: that tells beta.

    Args:
        comm: at least two ranks.
        gamma: seconds that a byte takes to be reduced.

    Returns:
        The figures as rank 0 saw them; those of other ranks mean nothing.
    """
    hop_s = _typical_s(comm, _chain(comm, 1)) / 2 / (comm.world - 1)
    alpha = max(_overhead(comm, hop_s), hop_s / 100)
    latency = max(hop_s - alpha, 0.0)
    beta = _beta(comm, alpha, latency, gamma)
    if comm.world == 2:
        alpha = max(alpha - _SEGMENT * beta, alpha / 10)  # the bytes of a burst
    return LinkFigures(alpha, latency, beta)


def _overhead(comm: Communicator, hop_s: float) -> float:
    if comm.world == 2:
        return (_typical_s(comm, _chain(comm, _BURST)) / 2 - hop_s) / (_BURST - 1)
    x = np.zeros(1, np.float32)
    one_shot_s = _typical_s(comm, lambda: comm.all_reduce(x, algorithm="one_shot", segments=1))
    return (one_shot_s - hop_s) / (comm.world - 2)


def _chain(comm: Communicator, segments: int) -> Callable[[], Any]:
    x = np.zeros(segments * _SEGMENT // _ELEMENT, np.float32)
    return lambda: comm.all_reduce(x, algorithm="linear_pipeline_unfused", segments=segments)


def _beta(comm: Communicator, alpha: float, latency: float, gamma: float) -> float:
    """Of the shortest message whose bytes show; how long it is, rank 0 decides."""
    nbytes = _FIRST
    shorter_s = taken_s = min(_seconds(_direct(comm, nbytes), 2))
    while nbytes < _LONGEST and not _agreed(comm, taken_s > max(_ENOUGH_S, _GROWN * shorter_s)):
        nbytes *= 4
        shorter_s, taken_s = taken_s, min(_seconds(_direct(comm, nbytes), 2))
    taken_s = _typical_s(comm, _direct(comm, nbytes))
    others = comm.world - 1
    share = nbytes * others / comm.world  # goes out, and comes in to be folded
    besides_s = 2 * others * _segments(nbytes) * alpha + 2 * latency + share * gamma
    # At least a tenth, also where the short ones took unduly long.
    return max(taken_s - besides_s, taken_s / 10) / (2 * share)


def _direct(comm: Communicator, nbytes: int) -> Callable[[], Any]:
    x = np.zeros(nbytes // _ELEMENT, np.float32)
    return lambda: comm.all_reduce(x, algorithm="direct", segments=_segments(nbytes))


def _segments(nbytes: int) -> int:
    return max(1, nbytes // _SEGMENTED)


def _typical_s(comm: Communicator, call: Callable[[], Any]) -> float:
    """Seconds of a call that follows its like; for how long they are made, rank 0 decides.

    The lowest decile: what else the machine does only ever adds.
    """
    times: list[float] = []
    end = time.perf_counter() + _SPEND_S
    while not times or _agreed(comm, time.perf_counter() < end):
        times += _seconds(call, _IN_A_ROW)
    return float(np.quantile(times, 0.1))


def _seconds(call: Callable[[], Any], count: int) -> list[float]:
    """Of each call, after one that does not count."""
    call()
    stamps = [time.perf_counter()]
    for _ in range(count):
        call()
        stamps.append(time.perf_counter())
    return list(np.diff(stamps))


def _agreed(comm: Communicator, value: float) -> float:
    """Rank 0's."""
    told = np.array([value], np.float64)
    comm.broadcast(told, algorithm="binomial_tree", segments=1)
    return float(told[0])
