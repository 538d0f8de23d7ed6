"""How the ranks of one node get the one memory that they share: rank 0 hosts, the others are guests."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gpucomm import _core
from gpucomm.comm import Communicator
from gpucomm.errors import CollectiveTimeoutError
from gpucomm.launch import guest, wire
from gpucomm.launch.host import Attached, Host
from gpucomm.launch.patience import Patience
from gpucomm.launch.ranks import Ranks

__all__ = ["meet", "share_memory"]

_ALWAYS_FIT = 64  # ranks that share memory; whether more do is what making it says


def meet(
    ranks: Ranks,
    count: int,
    timeout: float,
    create: Callable[[int], int],
    attach: Callable[[int], Attached],
    look: Callable[[], None] | None = None,
) -> Attached:
    """Meet the other ranks of this node and attach the memory that rank 0 makes.

    Either every rank returns or every rank raises, and says what was wrong.

    Args:
        ranks: who this process is.
        count: how many times this job has met before, the same on every rank.
        timeout: seconds until all ranks must have come; the shortest of all ranks counts.
        create: called on rank 0 with the world size; returns a file descriptor of the memory.
        attach: called on every rank with its descriptor of that memory, which is closed afterwards.
        look: called now and then while others are awaited; what it raises ends that.

    Returns:
        What `attach` returned.

    Raises:
        InvalidArgumentError: memory is shared by fewer ranks than that.
        CollectiveTimeoutError: some ranks did not come, or stopped answering, by the deadline.
        MismatchError: two processes have one rank, or world sizes, versions or settings differ.
        PeerLostError: a rank ended meanwhile.
        UnavailableError: another user's process holds the address, there are no unix sockets, or a rank could
            not attach.
    """
    if ranks.world > _ALWAYS_FIT:  # every rank says so, and waits for none
        os.close(create(ranks.world))
    name = wire.address(ranks.job, count)
    patience = Patience(timeout, look)
    if ranks.rank != 0:
        return guest.join(guest.connect(name, ranks, patience), ranks, patience, attach)
    for _ in patience.attempts():
        listener = wire.listen(name, ranks.world + 16)  # some room for strangers
        if listener is not None:
            return _serve(Host(listener, ranks, patience), ranks.world, create, attach)
        # Someone else is rank 0 already: going there as a guest tells all ranks of the duplicate.
        connection = guest.try_connect(name, ranks)
        if connection is not None:
            return guest.join(connection, ranks, patience, attach)
    raise CollectiveTimeoutError(
        f"rank 0 of {ranks.world} waited {timeout:g} s for the address of job {ranks.job!r},"
        " which another process holds"
    )


def share_memory(
    ranks: Ranks,
    start_timeout: float,
    count: int = 0,
    create: Callable[[int], int] = _core.shm_create,
    look: Callable[[], None] | None = None,
    **how: Any,
) -> Communicator:
    """The communicator of ranks that are processes of one node, or of one rank alone.

    Args:
        ranks: who this process is, and the nodes where they are told.
        start_timeout: seconds until all ranks must have come.
        count: as of `meet`.
        create: as of `meet`.
        look: as of `meet`.
        **how: further keywords of the communicator.

    Raises:
        Error: as `meet`.
    """
    how.setdefault("nodes", list(ranks.nodes))
    if ranks.world == 1:
        return Communicator("local", 0, 1, region=_core.Region(1), **how)

    def attach(memory: int) -> Communicator:
        return Communicator("shm", ranks.rank, ranks.world, fd=memory, **how)

    return meet(ranks, count, start_timeout, create, attach, look)


def _serve(
    host: Host, world: int, create: Callable[[int], int], attach: Callable[[int], Attached]
) -> Attached:
    try:
        host.gather()
        return _hand_out(host, create(world), attach)
    except BaseException as error:
        host.refuse(error)
        raise
    finally:
        host.close()


def _hand_out(host: Host, memory: int, attach: Callable[[int], Attached]) -> Attached:
    try:
        host.share(memory)
        attached = attach(memory)
    finally:
        os.close(memory)
    try:
        host.collect()
    except BaseException:
        attached.close()
        raise
    host.release()
    return attached
