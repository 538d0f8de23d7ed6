"""Measuring all links of a communicator, or taking what was measured between the same ranks before."""

from __future__ import annotations

import contextlib
import hashlib
import math
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpucomm import _core
from gpucomm.comm import Communicator
from gpucomm.errors import InvalidArgumentError
from gpucomm.launch.cores import affinity, cgroup_quota
from gpucomm.launch.patience import counting_down
from gpucomm.probe import cache
from gpucomm.probe.chain import measure_group
from gpucomm.probe.figures import Figures
from gpucomm.probe.given import given
from gpucomm.probe.rounds import Group, plan_rounds

__all__ = ["measure"]

Table = NDArray[np.float64]
Left = Callable[[], float]  # seconds
_CORES = 1024  # of a machine, as many as affinity masks hold
_PASSES = 3  # where one round is all: the machine may be busy for a moment


def measure(
    comm: Communicator, timeout: float | None = None, *, fresh: bool = False, codecs: Sequence[str] = ()
) -> Figures:
    """Measures the links between the ranks and hands the model of them to `comm`.

    Figures that were measured between the same ranks in the last 24 hours are taken from the cache (see
    GPUCOMM_CACHE). `algorithm="auto"` calls this at its first choice. Every rank must call it at the same
    point of its calls.

    Pairs that have no rank in common are measured at once; between nodes, one rank of each measures. For 8
    ranks it takes about 0.2 s in shared memory, 0.6 s on links of 1 Gbit/s.

    Emulated links are given: their figures are returned and neither measured nor kept, nor does a
    measurement (`fresh`) change what `comm` computes with. Nor does one of a frozen communicator.

    Args:
        comm: a communicator of at least two ranks.
        timeout: seconds for all of it; None: the communicator's.
        fresh: measures whatever the cache has, and puts the new figures there.
        codecs: specs whose speeds to measure too, 20 ms each, where they are not known; the same on all
            ranks. `algorithm="auto"` measures a codec when it is first asked for, unless they are kept here.

    Returns:
        The figures: the same on every rank.

    Raises:
        InvalidArgumentError: there is but one rank, or this one is in no such communicator.
        Error: as any collective.
    """
    if getattr(comm, "world", 2) < 2:  # where that raises, a NonMember says why
        raise InvalidArgumentError("a world of one rank has no links to measure")
    if not isinstance(comm, _core.Communicator):
        raise InvalidArgumentError(f"comm must be a communicator, got {comm!r}")
    begin = time.monotonic()
    if comm.emulation:
        comm.barrier(timeout)
        left = counting_down(float(timeout or comm.timeout), begin)
        return _with_codecs(comm, _surveyed(comm, (), left) if fresh else given(comm), codecs, left)
    hosts, together = _meet(comm, timeout)
    left = counting_down(float(timeout or comm.timeout), begin)
    nodes = tuple(comm.nodes)
    # Only rank 0 looks, so that all have the same.
    file = cache.place(comm.transport, nodes, hosts) if comm.rank == 0 else None
    kept = None if fresh else _kept(comm, file, left)
    figures = _with_codecs(comm, kept or _surveyed(comm, together, left), codecs, left)
    if figures is not kept:
        cache.store(file, figures)
    if not comm.frozen:
        comm.set_links(figures.links)
        for spec, speeds in figures.codecs.items():
            comm._set_coding(spec, *speeds)
    return figures


def _meet(comm: Communicator, timeout: float | None) -> tuple[bytes, set[int]]:
    """What tells these ranks' machines from others, and the nodes that have fewer cores than ranks."""
    own, quota = affinity(), cgroup_quota()
    host = repr((_boot(), sorted(own), quota)).encode()
    digest = int.from_bytes(hashlib.sha256(host).digest()[:7], "big")
    cores = sum(1 << core for core in own if core < _CORES).to_bytes(_CORES // 8, "little")
    mine = np.array([digest, _CORES if quota is None else math.ceil(quota)], np.int64)
    mine = np.concatenate([mine, np.frombuffer(cores, np.int64)])
    table = comm.all_gather(mine, algorithm="direct", segments=1, timeout=timeout).reshape(comm.world, -1)
    nodes = np.array(comm.nodes)
    together = {node for node in set(comm.nodes) if sum(nodes == node) > _cores(table[nodes == node, 1:])}
    return table[:, 0].tobytes(), together


def _cores(told: NDArray[np.int64]) -> int:
    """How many the ranks of a node have together: bound to one each, they see no more by themselves."""
    union = np.bitwise_or.reduce(told[:, 1:], axis=0).tobytes()
    return min(int.from_bytes(union, "little").bit_count(), int(told[:, 0].min()))


def _boot() -> str:
    """The same for all processes of a running kernel; where that cannot be known, like no other."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return secrets.token_hex()


def _kept(comm: Communicator, file: Path | None, left: Left) -> Figures | None:
    """The cache's figures, as rank 0 has read them."""
    found = cache.load(file, comm.transport, tuple(comm.nodes)) if comm.rank == 0 else None
    text = np.frombuffer(found.to_json().encode() if found else b"", np.uint8)
    length = np.array([len(text)], np.int64)
    comm.broadcast(length, algorithm="binomial_tree", segments=1, timeout=left())
    if not length[0]:
        return None
    told = text.copy() if comm.rank == 0 else np.empty(int(length[0]), np.uint8)
    comm.broadcast(told, algorithm="binomial_tree", segments=1, timeout=left())
    return Figures.from_json(told.tobytes().decode())


def _surveyed(comm: Communicator, together: Collection[int], left: Left) -> Figures:
    gamma = _slowest(comm, _reducing(), left)
    table = np.full((3, comm.world, comm.world), -1.0)
    rounds = plan_rounds(comm.nodes, together)
    for groups in rounds:
        _play(comm, groups, table, gamma, _PASSES if len(rounds) == 1 else 1, left)
    # Who has measured knows; all others have -1 there.
    comm.all_reduce(table, op="max", algorithm="direct", segments=1, timeout=left())
    table[table < 0] = np.nan
    alpha, latency, beta = table
    return Figures(
        transport=comm.transport,
        nodes=tuple(comm.nodes),
        together=tuple(sorted(together)),
        rates={"reduce": gamma},
        measured_at=_slowest(comm, time.time(), left),
        alpha=alpha,
        latency=latency,
        beta=beta,
    )


def _with_codecs(comm: Communicator, figures: Figures, specs: Sequence[str], left: Left) -> Figures:
    """With the speeds of these codecs, of the slowest rank; all ranks measure at once."""
    found = dict(figures.codecs)
    for spec in specs:
        if spec not in found:
            encode, decode = (_slowest(comm, seconds, left) for seconds in _core.Codec(spec).speed())
            found[spec] = (encode, decode)
    return figures if len(found) == len(figures.codecs) else replace(figures, codecs=found)


def _play(
    comm: Communicator, groups: list[Group], table: Table, gamma: float, passes: int, left: Left
) -> None:
    """One round: every group measures, and its first rank puts what it saw into the table."""
    mine = next((group for group in groups if comm.rank in group), ())
    alone = len(mine) == comm.world  # in this round: no group of its own is needed
    group = comm if alone else comm.split(mine[0] if mine else None, timeout=left())
    if not group:
        return
    with contextlib.nullcontext() if alone else group:
        seen = np.median([measure_group(group, gamma, left()) for _ in range(passes)], axis=0)
    if comm.rank == mine[0]:
        for a, b in _pairs(mine, comm.nodes):
            table[:, a, b] = table[:, b, a] = seen


def _pairs(group: Group, nodes: tuple[int, ...]) -> list[tuple[int, int]]:
    """The pairs for which a group speaks: its own, or those of its two nodes."""
    near, far = nodes[group[0]], nodes[group[-1]]
    if near == far:
        return [(a, b) for a in group for b in group if a < b]
    ranks = range(len(nodes))
    return [(a, b) for a in ranks for b in ranks if nodes[a] == near and nodes[b] == far]


def _slowest(comm: Communicator, value: float, left: Left) -> float:
    agreed = np.array([value])
    comm.all_reduce(agreed, op="max", algorithm="one_shot", segments=1, timeout=left())
    return float(agreed[0])


def _reducing() -> float:
    """Seconds that adding a byte takes, in memory of the size of a segment; all ranks measure at once."""
    x = np.zeros(1 << 16, np.float32)
    times = []
    for _ in range(7):
        start = time.perf_counter()
        _core.reduce("float32", "sum", [x, x], out=x)
        times.append(time.perf_counter() - start)
    return float(np.median(times)) / x.nbytes
