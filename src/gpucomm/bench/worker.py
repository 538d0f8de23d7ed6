"""What every rank does; the command calls these functions in turn through a local world.

Between two calls a rank's process keeps its session: the libraries, and the arrays of the size at hand.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field

import numpy as np

from gpucomm import Communicator
from gpucomm.bench.metrics import BY_RANK
from gpucomm.bench.ours import Gpucomm
from gpucomm.bench.peers import Array, Call, Library, aligned_zeros, peer

__all__ = ["begin", "end", "measure", "prepare", "verify"]


_BLOCK = 1 << 20  # elements checked at a time, so that the check takes little memory


@dataclass
class _Session:
    """What this process keeps."""

    libraries: dict[str, Library]
    calls: list[Call] = field(default_factory=list)
    buffer: Array = field(default_factory=lambda: np.empty(0))
    part: Array = field(default_factory=lambda: np.empty(0))


_session = _Session({})


def begin(comm: Communicator, peers: list[str], folder: str) -> dict[str, str]:
    """Join the libraries; returns the transport of each."""
    gc.disable()  # a collection inside a timed loop would count as communication
    _session.libraries = {"gpucomm": Gpucomm(comm)}
    for name in peers:
        _session.libraries[name] = peer(name).join(comm.rank, comm.world, folder, comm.timeout)
    return {name: library.transport for name, library in _session.libraries.items()}


def prepare(
    comm: Communicator, collective: str, contenders: list[tuple[str, str]], count: int, dtype: str
) -> None:
    """Allocate and touch the arrays of one size and bind every (library, algorithm) to them."""
    _session.calls, _session.buffer, _session.part = [], np.empty(0), np.empty(0)  # give memory back first
    buffer = aligned_zeros(count, dtype)
    share = count // comm.world
    part = buffer[comm.rank * share : (comm.rank + 1) * share] if collective in BY_RANK else buffer
    _session.buffer, _session.part = buffer, part
    _session.calls = [
        _session.libraries[library].bind(collective, algorithm, buffer, part)
        for library, algorithm in contenders
    ]


def verify(comm: Communicator, collective: str, contender: int) -> bool:
    """One call on known whole numbers; whether this rank's result is the expected one, bit for bit.

    The expected result is the same on every rank, so ranks that are all right are also identical.
    """
    buffer, part = _session.buffer, _session.part
    own = comm.rank * part.size
    buffer.fill(0)
    first, given = (own, part) if collective == "all_gather" else (0, buffer)
    for start in range(0, given.size, _BLOCK):
        block = given[start : start + _BLOCK]
        block[...] = _numbers(first + start, block.size, [comm.rank])
    _session.calls[contender]()
    everyone = list(range(comm.world))
    if collective == "all_gather":
        right = all(_holds(buffer[r * part.size :][: part.size], r * part.size, [r]) for r in everyone)
    elif collective == "reduce_scatter":
        right = _holds(part, own, everyone)
    elif collective == "reduce" and comm.rank:
        right = True  # only the root has a result
    else:
        right = _holds(buffer, 0, [0] if collective == "broadcast" else everyone)
    buffer.fill(0)  # while it is timed, sums of sums must not overflow
    return right


def _holds(result: Array, first: int, ranks: list[int]) -> bool:
    """Whether the result, which starts at this index, has the bits of the sum of these ranks' numbers."""
    for start in range(0, result.size, _BLOCK):
        block = result[start : start + _BLOCK]
        expected = _numbers(first + start, block.size, ranks).astype(block.dtype)
        if not np.array_equal(block.view(np.uint8), expected.view(np.uint8)):
            return False
    return True


def _numbers(first: int, count: int, ranks: list[int]) -> Array:
    """Whole numbers from 0 to 3 that look random, so that no two places are alike; their sum over ranks.

    Small, so that the sum is exact in every dtype (int8 up to 42 ranks).
    """
    total = np.zeros(count, np.int64)
    for rank in ranks:
        start = first + 104729 * rank
        mixed = np.arange(start, start + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        total += (mixed >> np.uint64(62)).astype(np.int64)
    return total


def measure(comm: Communicator, contender: int, calls: int) -> float:
    """Seconds that `calls` calls take on this rank, from a barrier on."""
    call = _session.calls[contender]
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
