"""A new communicator for those that are left after a fault.

They agree in the memory of the old one, word by word: who goes on, then whether what they made of it holds.
The first to write a word decides it, so the death of none leaves the others in doubt.
"""

from __future__ import annotations

from gpucomm.comm import Communicator, checked_timeout
from gpucomm.errors import ClosedError, CollectiveTimeoutError, Error, InvalidArgumentError, PeerLostError
from gpucomm.launch import groups, kept
from gpucomm.turns import turn

__all__ = ["shrink"]


def shrink(comm: Communicator, timeout: float | None) -> Communicator:
    """See `Communicator.shrink`."""
    where = f"(rank {comm.rank} of {comm.world})"
    patience = checked_timeout(comm.timeout if timeout is None else timeout, f" {where}")
    with turn(comm):
        if vars(comm).setdefault("_attempt", 0) is None:
            raise InvalidArgumentError(f"this communicator was shrunk before: use what that returned {where}")
        made: Communicator | None = vars(comm).pop("_met", None)
        error = None
        while made is None:
            made, error = _try(comm, patience, where)
        vars(comm)["_attempt"] = None
        kept.replace(comm, made)
    return made if error is None else made.shrink(patience)


def _try(comm: Communicator, patience: float, where: str) -> tuple[Communicator | None, Error | None]:
    """What the survivors keep of an attempt, and this rank's error in it; None: they begin again."""
    attempt = vars(comm)["_attempt"]
    members = comm._survivors(attempt, patience)
    if comm.rank not in members:
        raise ClosedError(f"rank {comm.rank} came too late: ranks {members} have gone on without it {where}")
    made, error = _make(comm, members, attempt, patience)
    if comm._keep(attempt, error is None):
        if made is None:  # a signal's handler has ended this when all had met
            raise ClosedError(f"ranks {members} have gone on, this one was interrupted {where}") from error
        if error is not None and not isinstance(error, Error):
            vars(comm)["_met"] = made  # for who calls again
            raise error
        return made, error
    vars(comm)["_attempt"] = attempt + 1
    if made is not None:
        made.close()
    if not isinstance(error, (PeerLostError, CollectiveTimeoutError, type(None))):
        raise error
    return None, None


def _make(
    comm: Communicator, members: list[int], attempt: int, timeout: float
) -> tuple[Communicator | None, BaseException | None]:
    """The members' communicator, if this rank came as far, and why it does not hold."""
    name = f"survivors {comm._identity:x} {attempt}"
    made = None

    def look() -> None:
        comm._check_waiting(members, "shrink")
        if comm._abandoned(attempt):
            raise PeerLostError(f"another rank begins again (rank {comm.rank} of {comm.world})")

    try:
        try:
            made = groups.join(comm, members, name, timeout, 0, look)
            made.barrier(timeout)
        finally:
            groups.forget(name)
    except BaseException as error:  # of a signal's handler too: the others must not wait for this rank
        return made, error
    return made, None
