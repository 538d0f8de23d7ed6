"""The communicator of the ranks that the environment tells of: in shared memory, or over a fabric."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gpucomm import _core
from gpucomm.comm import Communicator
from gpucomm.errors import InvalidArgumentError
from gpucomm.launch.claim import Claim, claim
from gpucomm.launch.patience import counting_down
from gpucomm.launch.ranks import Ranks
from gpucomm.launch.rendezvous import share_memory

if TYPE_CHECKING:
    from gpucomm.launch.fabric import Fabric

__all__ = ["emulation", "let_go", "open_ranks"]


class _Opened:
    count = 0  # how often this process has met others in shared memory, part of the meeting's address
    fabric: Fabric | None = None  # what connects the nodes, once opened


def emulation(links: str, world: int) -> dict[str, Any]:
    """The keywords with which so many ranks emulate the links of this text; none for ""."""
    if not links:
        return {}
    from gpucomm.links import parse_emulated

    return parse_emulated(links).arguments(world)


def open_ranks(ranks: Ranks, timeout: float) -> Communicator:
    """The communicator of these ranks, which all open it within `timeout` seconds; raises as `init`."""
    links = emulation(ranks.links, ranks.world)
    if ranks.world > 1 and ranks.transport != "shm":
        return _connect(ranks, timeout, links)
    claims: list[Claim] = []

    def create(world: int) -> int:
        memory: int = _core.shm_create(world)
        try:
            claims.append(claim(ranks))
        except BaseException:
            os.close(memory)
            raise
        return memory

    try:
        comm = share_memory(ranks, timeout, _Opened.count, create, timeout=timeout, **links)
    except BaseException:
        for claimed in claims:
            claimed.release()
        raise
    comm._claim = claims[0] if claims else None
    _Opened.count += 1
    return comm


def _connect(ranks: Ranks, timeout: float, links: dict[str, Any]) -> Communicator:
    if links:
        raise InvalidArgumentError(
            f"rank {ranks.rank} of {ranks.world}: links can only be emulated between the ranks of one node,"
            f" and transport {ranks.transport!r} connects several: unset GPUCOMM_LINKS"
        )
    from gpucomm.launch import fabric

    left = counting_down(timeout)
    if _Opened.fabric is None:
        _Opened.fabric = _open(ranks, timeout)
    return fabric.connect(_Opened.fabric, ranks, timeout, left)


def _open(ranks: Ranks, timeout: float) -> Fabric:
    if ranks.transport == "mpi":
        from gpucomm.launch.mpi import open_mpi

        return open_mpi(ranks, timeout)
    from gpucomm.launch.c10d import open_c10d

    return open_c10d(ranks, timeout)


def let_go(comm: Communicator) -> None:
    """Gives up what a closed communicator still has of the job."""
    if comm._claim:  # closed by a fault
        comm._claim.release()
    if comm._fabric is not None and comm._fabric is not _Opened.fabric:  # of torch.distributed's group
        comm._fabric.close()
