"""How the ranks of a group of torch.distributed get a communicator: they meet in the group's store."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpucomm.comm import Communicator
from gpucomm.errors import Error, InvalidArgumentError, MismatchError
from gpucomm.launch import fabric
from gpucomm.launch.asked import asked_links, numbered, parse_nodes
from gpucomm.launch.attempt import all_say, answering, own_store
from gpucomm.launch.c10d import open_c10d
from gpucomm.launch.opening import emulation
from gpucomm.launch.patience import counting_down
from gpucomm.launch.ranks import Ranks
from gpucomm.launch.rendezvous import share_memory
from gpucomm.links import restricted

__all__ = ["Seat", "communicator_of", "communicator_of_default", "joined"]

_HEARD_S = 5.0  # how long an error waits until all have found it


@dataclass(frozen=True)
class Seat:
    """Who this process is in a group.

    Attributes:
        rank: of this process in the group.
        members: the rank of each member in the job.
        total: how many ranks the job has.
        timeout_s: until all have come, and the communicator's default for its calls.
    """

    rank: int
    members: Sequence[int]
    total: int
    timeout_s: float

    @property
    def world(self) -> int:
        """How many members there are."""
        return len(self.members)


def joined(timeout_s: float) -> Seat | None:
    """Who this process is in the default group of torch.distributed; None: it has none, or is alone in it."""
    from torch import distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    world = dist.get_world_size()
    return Seat(dist.get_rank(), range(world), world, timeout_s) if world > 1 else None


@dataclass
class _Default:
    """What was made of a default group: the part of its store for that, and how often it has served."""

    store: Any
    served: int = 0


_defaults: weakref.WeakKeyDictionary[Any, _Default] = weakref.WeakKeyDictionary()


def communicator_of_default(seat: Seat, deterministic: bool) -> Communicator:
    """Makes a communicator of torch.distributed's default group; every member calls it.

    Who calls it again after a failure, alone too, meets those who are still coming.

    Args:
        seat: of `joined`.
        deterministic: what all of them ask for.

    Raises:
        Error: as `communicator_of`.
    """
    from torch.distributed import PrefixStore, distributed_c10d, group

    default = _defaults.get(group.WORLD)
    if default is None:
        store = PrefixStore("gpucomm.init", distributed_c10d._get_default_store())
        with answering(f"rank {seat.rank} of {seat.world}", "torch.distributed"):
            own = own_store(store, seat.rank, seat.world, seat.timeout_s)
        default = _defaults[group.WORLD] = _Default(own)
    comm = communicator_of(seat, PrefixStore(f"{default.served}", default.store), "none", deterministic)
    default.served += 1
    return comm


def communicator_of(seat: Seat, store: Any, options: str, deterministic: bool) -> Communicator:
    """Makes the communicator of a group; every member calls it.

    Members on one node share memory; else a Gloo group of its own connects the nodes. GPUCOMM_LINKS,
    GPUCOMM_NODES and GPUCOMM_TRANSPORT count as in `gpucomm.init()`; of what describes the job's ranks a
    group has its members' part.

    Args:
        seat: who this process is.
        store: of this group alone.
        options: how its collectives travel, which all members must say alike.
        deterministic: whether it is to measure and learn nothing, which the caller sees to.

    Raises:
        InvalidArgumentError: a variable is broken, or asks for what these ranks cannot have.
        MismatchError: the members were not given the same; on all of them.
        Error: as `gpucomm.init`.
    """
    transport = os.environ.get("GPUCOMM_TRANSPORT", "")
    if transport not in ("", "shm", "c10d"):
        raise InvalidArgumentError(
            f"GPUCOMM_TRANSPORT={transport!r} must be shm, c10d or unset for a group of torch.distributed"
            f" (rank {seat.rank} of {seat.world})"
        )
    told = parse_nodes(os.environ.get("GPUCOMM_NODES", ""), seat.total)
    links = asked_links(os.environ, seat.total, told)
    nodes = numbered([told[member] for member in seat.members]) if told else []
    ranks = Ranks(
        *(seat.rank, seat.world, secrets.token_hex(16), "store", links),
        nodes=tuple(nodes),
        deterministic=deterministic,
    )
    given = [f"the options {options}", f"the transport {transport or 'none'}", *ranks.settings]
    mine = json.dumps([str(fabric.node_key()), ranks.job, given])
    left = counting_down(seat.timeout_s)
    all_said = all_say(mine, store, seat.rank, seat.world, seat.timeout_s, "its process group")
    table = [json.loads(said) for said in all_said]
    try:
        _check_alike(seat, [given for *_, given in table])
    except MismatchError:
        _let_all_hear(seat, store)
        raise
    found = numbered([node for node, *_ in table])
    ranks = replace(ranks, job=table[0][1])
    if seat.world > 1 and (transport == "c10d" or (not transport and max(found) > 0)):
        return _between_nodes(seat, replace(ranks, nodes=tuple(nodes or found)), store, left)
    return _in_memory(seat, ranks, left)


def _in_memory(seat: Seat, ranks: Ranks, left: Callable[[], float]) -> Communicator:
    of_all = emulation(ranks.links, seat.total)
    how: dict[str, Any] = {"timeout": seat.timeout_s, **restricted(of_all, seat.members)}
    return share_memory(ranks, left(), **how)


def _between_nodes(seat: Seat, ranks: Ranks, store: Any, left: Callable[[], float]) -> Communicator:
    where = f"rank {seat.rank} of {seat.world}"
    if ranks.links:
        raise InvalidArgumentError(
            f"{where}: links can only be emulated between the ranks of one node, and this group is on several"
            " or GPUCOMM_TRANSPORT is c10d: unset GPUCOMM_LINKS"
        )
    from torch.distributed import PrefixStore

    over = open_c10d(ranks, left(), PrefixStore("wire", store))
    try:
        return fabric.connect(over, ranks, seat.timeout_s, left)
    except BaseException:
        over.close()
        raise


def _let_all_hear(seat: Seat, store: Any) -> None:
    """Before an error that all find: who raises it first may take the store along."""
    from torch.distributed import PrefixStore

    heard, patience_s = PrefixStore("heard", store), min(seat.timeout_s, _HEARD_S)
    with contextlib.suppress(Error, RuntimeError):
        all_say("", heard, seat.rank, seat.world, patience_s, "its process group")


def _check_alike(seat: Seat, table: list[list[str]]) -> None:
    for rank, given in enumerate(table):
        for first, other in zip(table[0], given, strict=True):
            if other != first:
                raise MismatchError(
                    f"the ranks of a group were not given the same: rank 0 {first}, rank {rank} {other}"
                    f" (rank {seat.rank} of {seat.world})"
                )
