"""Measuring the links between the ranks, for algorithm="auto"."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpucomm import _core

__all__ = ["measure"]

_SMALL, _LARGE = 1, 1 << 18  # float32 elements: overhead and latency, bandwidth


def _median_s(call: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def measure(comm: _core.Communicator) -> _core.Links:
    """Times a short and a long collective, agrees on the worst rank's figures and hands them to `comm`.

    A one-shot all-reduce of p ranks takes (p-1) alpha + lambda; a direct one of n bytes
    2(p-1)(alpha + n/p beta) + 2 lambda. Half of the short one's time is taken as latency; gamma is what
    adding a byte takes while all ranks add. Takes some milliseconds; every rank must call it at the same
    point of its calls.

    Args:
        comm: a communicator of at least two ranks.

    Returns:
        The links as agreed: the same on every rank.

    Raises:
        Error: as any collective.
    """
    others = comm.world - 1
    small, large = np.zeros(_SMALL, np.float32), np.zeros(_LARGE, np.float32)

    def short() -> Any:
        return comm.all_reduce(small, algorithm="one_shot", segments=1)

    def long() -> Any:
        return comm.all_reduce(large, algorithm="direct", segments=4)

    long()
    short_s, long_s = _median_s(short, 9), _median_s(long, 5)
    latency = short_s / 2
    alpha = short_s / 2 / others
    beta = (
        max(long_s - 2 * latency - 8 * others * alpha, long_s / 10) * comm.world / (2 * others * large.nbytes)
    )
    gamma = _median_s(lambda: np.add(large, large, out=large), 5) / large.nbytes
    agreed = np.array([alpha, latency, beta, gamma])
    comm.all_reduce(agreed, op="max", algorithm="one_shot", segments=1)
    links = _core.Links("switch", alpha=agreed[0], beta=agreed[2], lambda_=agreed[1], gamma=agreed[3])
    comm.set_links(links)
    return links
