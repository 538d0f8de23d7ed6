"""`gpucomm.init()`: this process's communicator, made once."""

from __future__ import annotations

import logging
import math
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from gpucomm.comm import Communicator, checked_timeout
from gpucomm.errors import InvalidArgumentError, UnavailableError
from gpucomm.launch import kept
from gpucomm.launch.asked import asked_links
from gpucomm.launch.asked import deterministic as asked_deterministic
from gpucomm.launch.environment import detect
from gpucomm.launch.opening import let_go, open_ranks
from gpucomm.launch.ranks import Ranks

if TYPE_CHECKING:
    from gpucomm.launch.store import Seat

__all__ = ["frozen_if_asked", "init"]

_log = logging.getLogger("gpucomm")
_TIMEOUT = 60.0  # seconds, where none is asked for


def init(timeout: float | None = None, *, deterministic: bool | None = None) -> Communicator:
    """The communicator of this process and all others of its job.

    The rank comes from what the launcher left in the environment: `gpucomm run`, torchrun, mpirun, srun.
    Where that is nothing, or not enough, it is that of torch.distributed's default group, if there is
    one; else this is a world of one. Ranks of one node share memory; where there are several nodes, MPI or
    torch.distributed connects them (GPUCOMM_TRANSPORT and GPUCOMM_NODES override).
    GPUCOMM_LINKS, which `gpucomm run --links` sets, makes the links as slow as described there. A second call
    returns the same communicator while it is open. Inside `gpucomm.local(...).run(fn)` it is the one that
    `fn` was given. What was picked is logged: INFO, by the logger "gpucomm"; that links are too fast to be
    emulated on this machine, where `gpucomm run` has not said it: WARNING.

    Args:
        timeout: seconds that all ranks have to come, and the communicator's default for its calls; None: 60,
            or as the communicator that is open has it.
        deterministic: whether algorithm="auto" measures and learns nothing, so that the same calls give the
            same bits in every run; the same on all ranks. None: as GPUCOMM_DETERMINISTIC says, 0 or 1.

    Returns:
        An open communicator; it is closed at the end of the process.

    Raises:
        InvalidArgumentError: an argument is broken, or a launcher's variable where torch.distributed does not
            tell the ranks, or the communicator that is open was made with other arguments.
        UnavailableError: nothing connects the ranks' nodes, or the process was forked after its init.
        CollectiveTimeoutError: some ranks did not come; the text names them.
        MismatchError: two processes have one rank, world sizes, versions or settings differ, or another
            job of the same key is running.
        PeerLostError: a rank ended meanwhile.
    """
    if timeout is not None:
        timeout = checked_timeout(timeout)
    if not isinstance(deterministic, bool | None):
        raise InvalidArgumentError(f"deterministic must be True, False or None, got {deterministic!r}")
    if (own := kept.of_thread()) is not None:
        return _as_asked(own, timeout, deterministic)
    with kept.lock:
        comm = kept.of_process()
        if comm is not None and not comm.closed:
            return _as_asked(comm, timeout, deterministic)
        if comm is not None:
            let_go(comm)
        frozen = asked_deterministic(os.environ) if deterministic is None else deterministic
        comm, source = _open_first(timeout or _TIMEOUT, frozen)
        if frozen:
            comm.freeze()
        _log.info(
            "rank %d of %d: started by %s, transport %s, nodes %s",
            *(comm.rank, comm.world, source, comm.transport, list(comm.nodes)),
        )
        if comm.rank == 0 and source != "gpucomm":  # whose launcher has said it
            _mark(comm)
        kept.keep(comm)
        return comm


def _open_first(timeout: float, frozen: bool) -> tuple[Communicator, str]:
    """The communicator of the ranks that the environment tells of, and who told.

    Where it tells of none, or not enough, and the process has joined others in torch.distributed, as under
    the launchers of frameworks, it is theirs.
    """
    try:
        ranks = replace(detect(os.environ), deterministic=frozen)
    except InvalidArgumentError as error:
        if (seat := _joined(timeout)) is None:
            raise
        _log.info("%s; so the ranks are those of torch.distributed", error)
    else:
        if ranks.world > 1 or (seat := _joined(timeout)) is None:
            _require_program(ranks)
            return open_ranks(ranks, timeout), ranks.source
    from gpucomm.launch.store import communicator_of_default

    return communicator_of_default(seat, frozen), "torch.distributed"


def _require_program(ranks: Ranks) -> None:
    """Refuses what a rank's helper process does while it imports the rank's program: nobody would meet it."""
    multiprocessing = sys.modules.get("multiprocessing")
    importing = multiprocessing and getattr(multiprocessing.current_process(), "_inheriting", False)
    if importing and ranks.world > 1:
        raise UnavailableError(
            f"init() is called by a process that rank {ranks.rank} of {ranks.world} has started by"
            " multiprocessing, as it imports the program again: put what the program does under"
            " if __name__ == '__main__'"
        )


def _joined(timeout: float) -> Seat | None:
    """As `store.joined`, which is loaded only where torch.distributed is."""
    if "torch.distributed" not in sys.modules:
        return None
    from gpucomm.launch.store import joined

    return joined(timeout)


def _as_asked(comm: Communicator, timeout: float | None, deterministic: bool | None) -> Communicator:
    """The open communicator, where that is what this init() asks for."""
    where = f"(rank {comm.rank} of {comm.world})"
    if timeout is not None and not math.isclose(timeout, comm.timeout):
        raise InvalidArgumentError(
            f"init was called with timeout={timeout:g}, but the communicator that is open has"
            f" {comm.timeout:g} s: close that first, or give the timeout to calls {where}"
        )
    if deterministic is not None and deterministic != comm.frozen:
        raise InvalidArgumentError(
            f"init was called with deterministic={deterministic}, but the communicator that is open is"
            f" {'' if comm.frozen else 'not '}frozen: close that first {where}"
        )
    return comm


def _mark(comm: Communicator) -> None:
    """Says that links are too fast to be emulated on this machine, if they are."""
    if links := asked_links(os.environ, comm.world, comm.nodes):
        from gpucomm.links import host_bound, parse_emulated

        if marked := host_bound(parse_emulated(links), comm.world):
            _log.warning("%s", marked)


def frozen_if_asked(comm: Communicator) -> Communicator:
    """The communicator, which learns nothing if the environment asks for that."""
    if asked_deterministic(os.environ):
        comm.freeze()
    return comm
