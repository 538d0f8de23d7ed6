"""Groups of a communicator's ranks, each a communicator of its own."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence

import numpy as np

from gpucomm import _core
from gpucomm.comm import Communicator
from gpucomm.errors import InvalidArgumentError
from gpucomm.launch import fabric
from gpucomm.launch.environment import Ranks
from gpucomm.launch.rendezvous import meet

__all__ = ["split", "subset"]

_APART = -1  # the color of a rank that joins no group

# Where threads of one process hand each other the region of a group: token -> region.
_regions: dict[int, _core.Region] = {}
_lock = threading.Lock()


def split(comm: Communicator, color: int | None, key: int = 0) -> Communicator | None:
    """See `Communicator.split`."""
    where = f"(rank {comm.rank} of {comm.world})"
    if color is not None and (not isinstance(color, int) or isinstance(color, bool) or color < 0):
        raise InvalidArgumentError(f"color must be a whole number from 0 up, or None, got {color!r} {where}")
    if not isinstance(key, int) or isinstance(key, bool):
        raise InvalidArgumentError(f"key must be a whole number, got {key!r} {where}")
    token = secrets.randbits(62)
    context = comm._fabric.next_context if comm._fabric else 0
    mine = np.array([_APART if color is None else color, key, token, context], np.int64)
    table = comm.all_gather(mine, algorithm="direct", segments=1).reshape(comm.world, 4)
    made = None if color is None else _join(comm, table, color)
    comm.barrier()
    with _lock:
        _regions.pop(token, None)
    return made


def subset(comm: Communicator, ranks: Sequence[int]) -> Communicator | None:
    """See `Communicator.subset`."""
    members = list(ranks)
    if len(set(members)) != len(members) or not all(0 <= r < comm.world for r in members) or not members:
        raise InvalidArgumentError(
            f"ranks must be distinct and in [0, {comm.world}), at least one, got {members} "
            f"(rank {comm.rank} of {comm.world})"
        )
    inside = comm.rank in members
    return split(comm, 0 if inside else None, members.index(comm.rank) if inside else 0)


def _join(comm: Communicator, table: np.ndarray, color: int) -> Communicator:
    members = sorted(np.flatnonzero(table[:, 0] == color).tolist(), key=lambda r: (table[r, 1], r))
    rank, world = members.index(comm.rank), len(members)
    token = int(table[members[0], 2])  # the first member's names the group: nobody can guess it
    nodes = [comm.nodes[member] for member in members]
    if comm._fabric:
        wire_ranks = [comm._wire_ranks[member] for member in members]
        return fabric.join(comm._fabric, rank, wire_ranks, nodes, int(table[:, 3].max()), token, comm.timeout)
    if comm.transport.removeprefix("emulated(").startswith("local"):
        with _lock:
            region = _regions.setdefault(token, _core.Region(world))
        return Communicator(
            "local", rank, world, region=region, timeout=comm.timeout, nodes=nodes, **comm.emulation
        )

    def attach(memory: int) -> Communicator:
        return Communicator(
            "shm", rank, world, fd=memory, timeout=comm.timeout, nodes=nodes, **comm.emulation
        )

    if world == 1:
        return Communicator("local", 0, 1, region=_core.Region(1), timeout=comm.timeout, **comm.emulation)
    ranks = Ranks(rank, world, rank, world, f"group {token:x}", "split")
    return meet(ranks, 0, comm.timeout, _core.shm_create, attach)
