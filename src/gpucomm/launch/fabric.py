"""Connecting ranks of several nodes: a wire between nodes, shared memory inside each."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gpucomm import _core
from gpucomm.comm import Communicator
from gpucomm.errors import MismatchError, UnavailableError
from gpucomm.launch.asked import numbered
from gpucomm.launch.ranks import Ranks
from gpucomm.launch.rendezvous import meet

__all__ = ["Fabric", "common_context", "connect", "join", "node_key"]


@dataclass
class Fabric:
    """What connects the nodes of this process's job.

    Attributes:
        name: of the transport: mpi or c10d.
        wire: what carries the bytes.
        most_contexts: how many communicators may share the wire.
        keep: what must live as long as the wire.
        close: ends what serves the wire, before the process does, once its communicators are closed.
        next_context: the first that no group of this process has had.
        inits: how often ranks have begun to meet over it; each time takes a context from the end.
        lock: held where a context is taken.
    """

    name: str
    wire: _core.Wire
    most_contexts: int
    keep: Any = field(default=None, repr=False)
    close: Callable[[], None] = field(default=lambda: None, repr=False)
    next_context: int = 0
    inits: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def take(self, context: int) -> bool:
        """Makes a context this process's own; False: it, or a later one, was taken already."""
        with self.lock:
            if context < self.next_context:
                return False
            self.next_context = context + 1
            return True


def connect(fabric: Fabric, ranks: Ranks, timeout: float, left: Callable[[], float]) -> Communicator:
    """Make the communicator of all ranks of a job: find the nodes, then share memory inside each.

    Args:
        fabric: a wire whose numbers are the ranks.
        ranks: who this process is; its `nodes`, if given, count as the nodes whatever the machines say.
        timeout: the communicator's default for its calls, in seconds.
        left: tells how many of those that all ranks have to come are left.

    Raises:
        CollectiveTimeoutError: some ranks did not come; the text names them.
        MismatchError: the ranks run different versions of gpucomm, or were given different settings.
        UnavailableError: ranks of one node could not share memory.
    """
    everybody = list(range(ranks.world))
    fabric.inits += 1
    meeting = Communicator(
        fabric.name,
        ranks.rank,
        ranks.world,
        wire=fabric.wire,
        nodes=everybody,
        context=fabric.most_contexts - fabric.inits,
        timeout=timeout,
    )
    with meeting:
        says = [fabric.next_context, secrets.randbits(62), _digest(_core.version), _digest(*ranks.settings)]
        mine = np.array([*says, *node_key()], np.int64)
        table = meeting.all_gather(mine, algorithm="direct", segments=1, timeout=left())
        table = table.reshape(ranks.world, -1)
        version = f"runs gpucomm {_core.version}"
        another = "another version than rank 0: install the same one on all nodes"
        _check_alike(table[:, 2], ranks, version, another)
        given = f"was given {' and '.join(ranks.settings[1:])}"  # there are no links to emulate
        _check_alike(table[:, 3], ranks, given, "something else than rank 0: give all ranks the same")
        nodes = ranks.nodes or numbered([row[4:].tobytes() for row in table])
        context, token = int(table[:, 0].max()), int(table[0, 1])
        comm = join(fabric, ranks.rank, everybody, nodes, context, f"{token:x}", left(), timeout)
        meeting.barrier(timeout=left())  # nobody leaves before all have met
    return comm


def common_context(comm: Communicator, timeout: float | None) -> int:
    """A context that no communicator of these ranks has, which all of them take; every rank must call this.

    Other threads may be about to agree on one over other communicators, and on each rank come first or last.
    Who does not get what all have wanted goes further on than others, by what its communicator is called.
    """
    fabric, step = comm._fabric, 1
    assert fabric
    largest = partial(comm.all_reduce, op="max", algorithm="direct", segments=1, timeout=timeout)
    while True:
        wish = fabric.next_context + (comm._identity % step)
        context = int(largest(np.array([wish]))[0])
        late = context < fabric.most_contexts and not fabric.take(context)  # with none left join() says so
        if not largest(np.array([int(late)]))[0]:
            return context
        step = min(2 * step, 64)


def join(
    fabric: Fabric,
    rank: int,
    wire_ranks: Sequence[int],
    nodes: Sequence[int],
    context: int,
    name: str,
    start_timeout: float,
    timeout: float,
    look: Callable[[], None] | None = None,
) -> Communicator:
    """Make a communicator over a fabric; every rank of it must call this.

    Args:
        fabric: what connects its nodes.
        rank: of this process in the new communicator.
        wire_ranks: the wire's number of each rank.
        nodes: the node of each rank.
        context: a number that no other communicator of these ranks has.
        name: of the group, which all its ranks know and nobody can guess.
        start_timeout: seconds to meet.
        timeout: the communicator's default for its calls, in seconds.
        look: called now and then while others are awaited; what it raises ends that.
    """
    if context >= fabric.most_contexts - fabric.inits:
        raise UnavailableError(
            f"rank {rank} of {len(nodes)}: {fabric.most_contexts} communicators have shared the"
            f" {fabric.name} wire, which is all that it can tell apart: make fewer groups"
        )
    fabric.take(context)
    inside = [r for r in range(len(nodes)) if nodes[r] == nodes[rank]]

    def attach(memory: int) -> Communicator:
        comm = Communicator(
            fabric.name,
            rank,
            len(nodes),
            fd=memory,
            wire=fabric.wire,
            wire_ranks=list(wire_ranks),
            nodes=list(nodes),
            context=context,
            identity=int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"),
            timeout=timeout,
        )
        comm._fabric, comm._wire_ranks = fabric, tuple(wire_ranks)
        return comm

    if len(inside) == 1:
        return attach(-1)
    place = inside.index(rank)
    here = Ranks(place, len(inside), f"{name} node {nodes[rank]}", fabric.name)
    return meet(here, 0, start_timeout, _core.shm_create, attach, look)


def _digest(*texts: str) -> int:
    """A number that no other texts have."""
    return int.from_bytes(hashlib.sha256("\0".join(texts).encode()).digest()[:7], "big")


def _check_alike(digests: np.ndarray, ranks: Ranks, mine: str, theirs: str) -> None:
    others = np.flatnonzero(digests != digests[0])
    if len(others):
        raise MismatchError(f"rank {ranks.rank} of {ranks.world} {mine}, and rank {others[0]} {theirs}")


def node_key() -> list[int]:
    """Numbers that two processes have in common exactly where they can share memory."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        parts = [file.read().strip()]
    parts += [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid")]
    digest = hashlib.sha256("/".join(parts).encode()).digest()
    return np.frombuffer(digest, np.int64).tolist()  # type: ignore[no-any-return]
