"""For every class of error a function that raises it: what stands in the documentation is what happens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import gpucomm

__all__ = ["EXAMPLES"]


def _invalid_argument() -> None:
    """An unknown algorithm."""
    with gpucomm.local(2, threads=True) as world:
        world.run(lambda comm: comm.all_reduce(np.ones(4), algorithm="rign"))


def _unsupported_type() -> None:
    """A list."""
    with gpucomm.local(2, threads=True) as world:
        world.run(lambda comm: comm.all_reduce([1.0, 2.0]))


def _mismatch() -> None:
    """Counts that differ."""
    with gpucomm.local(2, threads=True) as world:
        world.run(lambda comm: comm.all_reduce(np.ones(4 + comm.rank), algorithm="ring"))


def _timeout() -> None:
    """A rank that does not come."""

    def late(comm: gpucomm.Communicator) -> None:
        if comm.rank != 2:
            comm.barrier(timeout=0.2)

    with gpucomm.local(3, threads=True) as world:
        world.run(late)


def _peer_lost() -> None:
    """A rank that goes."""

    def leave(comm: gpucomm.Communicator) -> None:
        if comm.rank == 1:
            comm.close()
        else:
            comm.broadcast(np.ones(4), root=1, algorithm="binomial_tree")

    with gpucomm.local(2, threads=True) as world:
        world.run(leave)


def _closed() -> None:
    """A call after the end."""

    def late(comm: gpucomm.Communicator) -> None:
        comm.close()
        comm.barrier()

    with gpucomm.local(1, threads=True) as world:
        world.run(late)


def _unavailable() -> None:
    """More shared memory than the machine has."""
    with gpucomm.local(1, threads=True) as world:
        world.run(lambda comm: gpucomm.empty(1 << 50, comm=comm))


def _rank_failed() -> None:
    """A function that raises."""
    with gpucomm.local(2, threads=True) as world:
        world.run(lambda comm: [10, 20][comm.rank + 1])


EXAMPLES: dict[str, Callable[[], None]] = {
    "InvalidArgumentError": _invalid_argument,
    "UnsupportedTypeError": _unsupported_type,
    "MismatchError": _mismatch,
    "CollectiveTimeoutError": _timeout,
    "PeerLostError": _peer_lost,
    "ClosedError": _closed,
    "UnavailableError": _unavailable,
    "RankFailedError": _rank_failed,
}
