"""Measuring the links between the ranks, for algorithm="auto"."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpucomm import _core
from gpucomm.comm import Communicator

__all__ = ["measure"]

Times = tuple[float, float, float]  # alpha, lambda, beta
_NOTHING: Times = (0.0, 0.0, 0.0)
_SMALL, _LARGE = 1, 1 << 18  # float32 elements: overhead and latency, bandwidth


def _median_s(call: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def measure(comm: Communicator, timeout: float | None = None) -> _core.Links:
    """Measures the links between the ranks, agrees on the worst rank's figures and hands them to `comm`.

    Where the ranks are on several nodes, one rank of each measures the links across, then each node its own.
    Takes some milliseconds on one node; every rank must call it at the same point of its calls.

    Args:
        comm: a communicator of at least two ranks.
        timeout: seconds that all ranks have to come; None: the communicator's.

    Returns:
        The links as agreed: the same on every rank.

    Raises:
        Error: as any collective.
    """
    comm.barrier(timeout)
    several = len(set(comm.nodes)) > 1
    across, inside = _node_times(comm) if several else (_times(comm), _NOTHING)
    agreed = np.array([*across, *inside, _gamma()])
    comm.all_reduce(agreed, op="max", algorithm="one_shot", segments=1)
    alpha, latency, beta, inner_alpha, inner_latency, inner_beta, gamma = agreed
    links = _core.Links(
        "nodes" if several else "switch",
        alpha=alpha,
        beta=beta,
        lambda_=latency,
        gamma=gamma,
        nodes=list(comm.nodes) if several else [],
        inner_alpha=inner_alpha,
        inner_beta=inner_beta,
        inner_lambda=inner_latency,
    )
    comm.set_links(links)
    return links


def _node_times(comm: Communicator) -> tuple[Times, Times]:
    inside, across = comm.split_nodes()
    with inside, across:
        comm.barrier()
        out = _times(across) if inside.rank == 0 and across.world > 1 else _NOTHING
        comm.barrier()
        return out, _times(inside) if inside.world > 1 else _NOTHING


def _times(comm: Communicator) -> Times:
    """Overhead and latency (s a message) and s a byte, of a short and a long collective.

    A one-shot all-reduce of p ranks takes (p-1) alpha + lambda; a direct one of n bytes
    2(p-1)(alpha + n/p beta) + 2 lambda. Half of the short one's time is taken as latency.
    """
    others = comm.world - 1
    small, large = np.zeros(_SMALL, np.float32), np.zeros(_LARGE, np.float32)

    def short() -> Any:
        return comm.all_reduce(small, algorithm="one_shot", segments=1)

    def long() -> Any:
        return comm.all_reduce(large, algorithm="direct", segments=4)

    long()
    short_s, long_s = _median_s(short, 9), _median_s(long, 5)
    latency, alpha = short_s / 2, short_s / 2 / others
    moving_s = max(long_s - 2 * latency - 8 * others * alpha, long_s / 10)
    return alpha, latency, moving_s * comm.world / (2 * others * large.nbytes)


def _gamma() -> float:
    """Seconds that adding a byte takes while all ranks add."""
    large = np.zeros(_LARGE, np.float32)
    return _median_s(lambda: np.add(large, large, out=large), 5) / large.nbytes
