"""`gpucomm.init()`: this process's communicator, made once."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpucomm import _core
from gpucomm.comm import Communicator
from gpucomm.ending import close_at_exit
from gpucomm.errors import InvalidArgumentError, UnavailableError
from gpucomm.launch.claim import Claim, claim
from gpucomm.launch.environment import Ranks, asked_links, detect
from gpucomm.launch.environment import deterministic as asked_deterministic
from gpucomm.launch.rendezvous import meet

if TYPE_CHECKING:
    from gpucomm.launch.fabric import Fabric
    from gpucomm.launch.store import Seat

__all__ = [
    "adopt",
    "bound",
    "checked_timeout",
    "emulation",
    "frozen_if_asked",
    "init",
    "replace",
]


_log = logging.getLogger("gpucomm")
_TIMEOUT = 60.0  # seconds, where none is asked for
_LONGEST = 1e9  # seconds: what sockets and selectors take


class _Process:
    """What this process remembers of its inits."""

    lock = threading.Lock()
    comm: Communicator | None = None
    pid = 0  # of the process that made it: a forked child must not use its parent's
    count = 0  # of successful inits, part of the meeting's address
    fabric: Fabric | None = None  # what connects the nodes, once opened


_thread = threading.local()


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
        MismatchError: two processes have one rank, world sizes, versions or emulated links differ, or another
            job of the same key is running.
        PeerLostError: a rank ended meanwhile.
    """
    if timeout is not None:
        timeout = checked_timeout(timeout)
    if not isinstance(deterministic, bool | None):
        raise InvalidArgumentError(f"deterministic must be True, False or None, got {deterministic!r}")
    if (own := getattr(_thread, "comm", None)) is not None:
        return _as_asked(own, timeout, deterministic)
    with _Process.lock:
        comm = _Process.comm
        if comm is not None and not comm.closed:
            if _Process.pid != os.getpid():
                raise UnavailableError(
                    f"process {os.getpid()} was forked from rank {comm.rank}, it cannot use its communicator:"
                    " start ranks as fresh processes (gpucomm run, gpucomm.local)"
                )
            return _as_asked(comm, timeout, deterministic)
        if comm is not None:
            _let_go(comm)
        made, source = _open_first(timeout or _TIMEOUT)
        comm = frozen_if_asked(made, deterministic)
        _log.info(
            "rank %d of %d: started by %s, transport %s, nodes %s",
            *(comm.rank, comm.world, source, comm.transport, list(comm.nodes)),
        )
        if comm.rank == 0 and source != "gpucomm":  # whose launcher has said it
            _mark(comm)
        _remember(comm)
        return comm


def _let_go(comm: Communicator) -> None:
    """Gives up what a closed communicator still has of the job."""
    if comm._claim:  # closed by a fault
        comm._claim.release()
    if comm._fabric is not None and comm._fabric is not _Process.fabric:  # of torch.distributed's group
        comm._fabric.close()


def _open_first(timeout: float) -> tuple[Communicator, str]:
    """The communicator of the ranks that the environment tells of, and who told.

    Where it tells of none, or not enough, and the process has joined others in torch.distributed, as under
    the launchers of frameworks, it is theirs.
    """
    try:
        ranks = detect(os.environ)
    except InvalidArgumentError as error:
        if (seat := _joined(timeout)) is None:
            raise
        _log.info("%s; so the ranks are those of torch.distributed", error)
    else:
        if ranks.world > 1 or (seat := _joined(timeout)) is None:
            _require_program(ranks)
            return _make(ranks, timeout), ranks.source
    from gpucomm.launch.store import communicator_of_default

    return communicator_of_default(seat), "torch.distributed"


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


def frozen_if_asked(comm: Communicator, asked: bool | None = None) -> Communicator:
    """The communicator, which learns nothing if that is asked for, here or by the environment."""
    if asked_deterministic(os.environ) if asked is None else asked:
        comm.freeze()
    return comm


def adopt(comm: Communicator) -> None:
    """Make `comm` what `init` returns in this process."""
    with _Process.lock:
        _remember(comm)


def replace(old: Communicator, new: Communicator) -> None:
    """Make `new` what `init` returns wherever it returned `old`."""
    with _Process.lock:
        if _Process.comm is old:
            _remember(new)
            new._claim, old._claim = old._claim, None
    if getattr(_thread, "comm", None) is old:
        _thread.comm = new


@contextlib.contextmanager
def bound(comm: Communicator) -> Iterator[None]:
    """Make `comm` what `init` returns in this thread."""
    _thread.comm = comm
    try:
        yield
    finally:
        del _thread.comm


def checked_timeout(timeout: float) -> float:
    """Returns `timeout`, as far as clocks count; raises InvalidArgumentError unless it is positive."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise InvalidArgumentError(f"timeout={timeout!r} must be a positive, finite number of seconds")
    return min(timeout, _LONGEST)


def emulation(links: str, world: int) -> dict[str, Any]:
    """The keywords with which so many ranks emulate the links of this text; none for ""."""
    if not links:
        return {}
    from gpucomm.links import parse_emulated

    return parse_emulated(links).arguments(world)


def _make(ranks: Ranks, timeout: float) -> Communicator:
    links = emulation(ranks.links, ranks.world)
    if ranks.world == 1:
        return Communicator("local", 0, 1, region=_core.Region(1), timeout=timeout, **links)

    if ranks.transport != "shm":
        return _connect(ranks, timeout, links)

    def attach(memory: int) -> Communicator:
        nodes = list(ranks.nodes)
        return Communicator("shm", ranks.rank, ranks.world, fd=memory, timeout=timeout, nodes=nodes, **links)

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
        comm = meet(ranks, _Process.count, timeout, create, attach)
    except BaseException:
        for claimed in claims:
            claimed.release()
        raise
    comm._claim = claims[0] if claims else None
    _Process.count += 1
    return comm


def _connect(ranks: Ranks, timeout: float, links: dict[str, Any]) -> Communicator:
    if links:
        raise InvalidArgumentError(
            f"rank {ranks.rank} of {ranks.world}: links can only be emulated between the ranks of one node,"
            f" and transport {ranks.transport!r} connects several: unset GPUCOMM_LINKS"
        )
    from gpucomm.launch import fabric

    if _Process.fabric is None:
        _Process.fabric = _open(ranks, timeout)
    return fabric.connect(_Process.fabric, ranks, timeout)


def _open(ranks: Ranks, timeout: float) -> Fabric:
    if ranks.transport == "mpi":
        from gpucomm.launch.mpi import open_mpi

        return open_mpi(ranks, timeout)
    from gpucomm.launch.c10d import open_c10d

    return open_c10d(ranks, timeout)


def _remember(comm: Communicator) -> None:
    if _Process.comm is None:
        atexit.register(_close)
    _Process.comm, _Process.pid = comm, os.getpid()


def _close() -> None:
    if _Process.comm is not None and _Process.pid == os.getpid():
        close_at_exit(_Process.comm, _Process.comm.close)
