"""Groups of a communicator's ranks, each a communicator of its own."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpucomm import _core
from gpucomm.comm import Communicator
from gpucomm.errors import ClosedError, Error, InvalidArgumentError, MismatchError
from gpucomm.launch import fabric
from gpucomm.launch.patience import counting_down
from gpucomm.launch.ranks import Ranks
from gpucomm.launch.rendezvous import share_memory
from gpucomm.links import restricted
from gpucomm.non_member import NonMember
from gpucomm.turns import turn

__all__ = ["forget", "join", "split", "subset"]

_CALL = "split/subset"
_APART = -1  # the color of a rank that joins no group

# Where threads of one process hand each other the region of a group: token -> region.
_regions: dict[str, _core.Region] = {}
_lock = threading.Lock()


def split(comm: Communicator, color: int | None, key: int, timeout: float | None) -> Communicator | NonMember:
    """See `Communicator.split`."""
    group, place = _core.whole(color), _core.whole(key)
    if color is not None and (group is None or group < 0):
        rule = f"color must be a whole number from 0 to 2^63 - 1, or None, got {_core.shown(color)}"
        raise comm._refused("split", InvalidArgumentError(rule))
    if place is None:
        rule = f"key must be a whole number of 64 bits, got {_core.shown(key)}"
        raise comm._refused("split", InvalidArgumentError(rule))
    return _divide(comm, group, place, None, timeout)


def subset(comm: Communicator, ranks: Sequence[int], timeout: float | None) -> Communicator | NonMember:
    """See `Communicator.subset`."""
    try:
        told = [_core.whole(rank) for rank in ranks]
    except TypeError:  # arrays without an axis are iterable, but for this
        told = []
    members = [rank for rank in told if rank is not None and 0 <= rank < comm.world]
    if not members or len(members) != len(told) or len(set(members)) != len(members):
        rule = f"ranks must be distinct whole numbers in [0, {comm.world}), no bools, at least one"
        raise comm._refused("subset", InvalidArgumentError(f"{rule}, got {_core.shown(ranks)}"))
    inside = comm.rank in members
    color, key = (0, members.index(comm.rank)) if inside else (None, 0)
    return _divide(comm, color, key, members, timeout)


def _divide(
    comm: Communicator, color: int | None, key: int, asked: list[int] | None, timeout: float | None
) -> Communicator | NonMember:
    """Makes the groups; `asked` is what all must have said alike, None where each says its own."""
    begin = time.monotonic()
    with turn(comm), comm._parts_of(_CALL):
        token = secrets.randbits(62)
        mine = np.array([_APART if color is None else color, key, token, _digest(asked)], np.int64)
        table = comm.all_gather(mine, algorithm="direct", segments=1, timeout=timeout)
        left = counting_down(float(timeout or comm.timeout), begin)
        table = table.reshape(comm.world, len(mine))
        if len(set(table[:, 3].tolist())) > 1:
            raise MismatchError(_unlike(comm, asked))
        context = fabric.common_context(comm, left()) if comm._fabric else 0
        if color is None:
            comm.barrier(timeout=left())
            return NonMember(comm.rank, comm.world, asked or ())
        members = sorted(np.flatnonzero(table[:, 0] == color).tolist(), key=lambda r: (table[r, 1], r))
        # the first member's token names the group: nobody can guess it
        name = f"group {int(table[members[0], 2]):x}"
        try:
            made = _joined(comm, members, name, left(), context)
            comm.barrier(timeout=left())
        finally:
            forget(name)
        return made


def _joined(comm: Communicator, members: list[int], name: str, timeout: float, context: int) -> Communicator:
    """As `join`, but what is wrong on one rank ends the communicator: the others wait for it there."""
    try:
        return join(comm, members, name, timeout, context, partial(comm._check_waiting, members, _CALL))
    except BaseException as error:
        kind = type(error) if isinstance(error, Error) else ClosedError
        what = str(error) if isinstance(error, Error) else f"ended by {type(error).__name__}"
        comm._give_up(kind.__name__, f"{_CALL}: {what} (rank {comm.rank} of {comm.world})")
        raise


def _digest(asked: list[int] | None) -> int:
    if asked is None:
        return 0
    digest = hashlib.blake2b(np.array(asked, np.int64).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _unlike(comm: Communicator, asked: list[int] | None) -> str:
    calls: dict[str, list[str]] = {}
    for rank, ranks in enumerate(comm.gather_objects(asked) or ()):
        call = "split" if ranks is None else f"subset({ranks})"
        calls.setdefault(call, []).append(str(rank))
    said = "; ".join(f"rank {', '.join(who)} called {call}" for call, who in calls.items())
    return f"every rank must call subset with the same ranks, but {said} (rank {comm.rank} of {comm.world})"


def join(
    comm: Communicator,
    members: Sequence[int],
    name: str,
    timeout: float,
    context: int,
    look: Callable[[], None],
) -> Communicator:
    """The communicator of some ranks, each of which calls this.

    Args:
        comm: theirs by now.
        members: its ranks that come, in the order that they get; this one is among them.
        name: of the group, the same on all members and like no other's.
        timeout: seconds that they have to come.
        context: between nodes, a number that no communicator of these ranks has had.
        look: called now and then while others are awaited; what it raises ends that.

    Returns:
        The group's communicator, with the timeout and the emulated links of `comm`, frozen where that is.

    Raises:
        Error: as `init`.
    """
    rank, world = list(members).index(comm.rank), len(members)
    nodes = [comm.nodes[member] for member in members]
    how: dict[str, Any] = {"timeout": comm.timeout, "nodes": nodes, **restricted(comm.emulation, members)}
    if comm._fabric:
        wire_ranks = [comm._wire_ranks[member] for member in members]
        made = fabric.join(comm._fabric, rank, wire_ranks, nodes, context, name, timeout, comm.timeout, look)
    elif comm.transport.removeprefix("emulated(").startswith("local"):
        with _lock:
            region = _regions.setdefault(name, _core.Region(world))
        made = Communicator("local", rank, world, region=region, **how)
    else:
        made = share_memory(Ranks(rank, world, name, "split"), timeout, look=look, **how)
    if comm.frozen:
        made.freeze()
    return made


def forget(name: str) -> None:
    """Lets go of a group's memory once all its members have it, or one has failed."""
    with _lock:
        _regions.pop(name, None)
