"""What every rank does; the command calls these functions in turn through a local world.

Between two calls a rank's process keeps its session: the libraries, and the arrays of the size at hand.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpucomm import Communicator
from gpucomm.bench.coded import codec_of
from gpucomm.bench.learning import learn
from gpucomm.bench.metrics import MEMORIES
from gpucomm.bench.ours import Gpucomm
from gpucomm.bench.pattern import fill, holds, stored
from gpucomm.bench.peers import Array, Call, Library, aligned_zeros, known_peers, peer, storage_of
from gpucomm.kinds import BY_RANK, ROOTED_BY_RANK
from gpucomm.memory import empty

__all__ = ["begin", "end", "measure", "prepare", "settle", "verify"]


@dataclass
class _Session:
    """What this process keeps."""

    libraries: dict[str, Library]
    # Of each kind of memory: "auto" learns for it by itself, as in programs whose arrays are all of one kind.
    comms: dict[str, Communicator] = field(default_factory=dict)
    calls: list[tuple[Call, Array, Array]] = field(default_factory=list)  # with its buffer and part


_session = _Session({})


def begin(comm: Communicator, ours: list[str], peers: list[str], folder: str) -> dict[str, str]:
    """Join the libraries, ours by the names of its kinds of memory; returns the transport of each."""
    gc.disable()  # a collection inside a timed loop would count as communication
    for name in ours:
        apart = comm.subset(range(comm.world))
        assert apart
        _session.comms[name] = apart
        _session.libraries[name] = Gpucomm(apart)
    for name in peers:
        _session.libraries[name] = peer(name).join(comm.rank, comm.world, folder, comm.timeout)
    return {name: library.transport for name, library in _session.libraries.items()}


def prepare(
    comm: Communicator,
    collective: str,
    contenders: list[tuple[str, str]],
    count: int,
    dtype: str,
    codec: str | None = None,
) -> None:
    """Allocate and touch the arrays of one size and bind every (library, algorithm) to them.

    With a codec, which only ours take, reductions are means: they stay in range.
    """
    _session.calls = []  # gives memory back first
    buffers: dict[str, Array] = {}
    for library, algorithm in contenders:
        kind = getattr(peer(library), "MEMORY", "private") if library in known_peers() else ""
        memory = MEMORIES[kind] if kind else library
        if memory not in buffers:
            buffers[memory] = _zeros(memory, count, dtype)
        buffer, share = buffers[memory], count // comm.world
        part = buffer[comm.rank * share : (comm.rank + 1) * share] if collective in BY_RANK else buffer
        if collective in ROOTED_BY_RANK:
            part = _zeros(memory, share, dtype)
        how: dict[str, Any] = {"codec": codec_of(algorithm, codec), "op": "mean"} if codec else {}
        call = _session.libraries[library].bind(collective, algorithm, buffer, part, **how)
        _session.calls.append((call, buffer, part))


def _zeros(memory: str, count: int, dtype: str) -> Array:
    if memory == MEMORIES["shared"]:
        array: Array = empty(count, storage_of(dtype), comm=_session.comms[memory])
        array.fill(0)
        return array
    return aligned_zeros(count, dtype, huge_pages=memory == MEMORIES["huge_pages"])


def verify(comm: Communicator, collective: str, contender: int, within: float | None = None) -> bool:
    """One call on known whole numbers; whether this rank's result is the expected one; see `holds`."""
    call, buffer, part = _session.calls[contender]
    fill(collective, buffer, part, comm.rank)
    call()
    right = holds(collective, buffer, part, comm.rank, comm.world, within)
    # While it is timed, sums of sums must not overflow; and what a codec makes of zeros says little.
    noise = np.random.default_rng(comm.rank)
    buffer[...] = 0 if within is None else stored(noise.standard_normal(buffer.size), buffer.dtype)
    return right


def settle(
    comm: Communicator, collective: str, contender: int, library: str, codec: str | None = None
) -> None:
    """Lets "auto" learn."""
    call, buffer, _ = _session.calls[contender]
    learn(_session.comms[library], collective, buffer.nbytes, call, codec)


def measure(comm: Communicator, contender: int, calls: int) -> float:
    """Seconds that `calls` calls take on this rank, from a barrier on, once as many have been made.

    The first ones find caches and cores as others have left them. Jobs of MPI warm up as long.
    """
    call, _, _ = _session.calls[contender]
    for _ in range(calls):
        call()
    comm.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    elapsed = time.perf_counter() - start
    comm.barrier()  # the next contender starts when all have ended
    return elapsed


def end(comm: Communicator) -> None:
    """Leave the libraries; every rank at once, so that none waits for one that has gone."""
    for library in _session.libraries.values():
        library.close()
    comm.barrier()
