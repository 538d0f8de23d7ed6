"""A new communicator for those that are left after a fault.

They agree in the memory of the old one, word by word: who goes on, then whether what they made of it holds.
The first to write a word decides it, so the death of none leaves the others in doubt.
"""

from __future__ import annotations

from gpucomm.comm import Communicator, checked_timeout
from gpucomm.errors import ClosedError, CollectiveTimeoutError, Error, InvalidArgumentError, PeerLostError
from gpucomm.launch import groups, kept

__all__ = ["shrink"]


def shrink(comm: Communicator, timeout: float | None) -> Communicator:
    """See `Communicator.shrink`."""
    where = f"(rank {comm.rank} of {comm.world})"
    patience = checked_timeout(comm.timeout if timeout is None else timeout, f" {where}")
    attempt = vars(comm).setdefault("_attempt", 0)
    if attempt is None:
        raise InvalidArgumentError(f"this communicator was shrunk before: use what that returned {where}")
    while True:
        members = comm._survivors(attempt, patience)
        if comm.rank not in members:
            raise ClosedError(
                f"rank {comm.rank} came too late: ranks {members} have gone on without it {where}"
            )
        made, error = _make(comm, members, attempt, patience)
        if comm._keep(attempt, error is None):
            break
        attempt += 1
        vars(comm)["_attempt"] = attempt
        if made is not None:
            made.close()
        if not isinstance(error, (PeerLostError, CollectiveTimeoutError, type(None))):
            raise error
    assert made is not None  # some rank has met all others in it, this one too
    vars(comm)["_attempt"] = None
    kept.replace(comm, made)
    return made if error is None else made.shrink(patience)


def _make(
    comm: Communicator, members: list[int], attempt: int, timeout: float
) -> tuple[Communicator | None, Error | None]:
    """The members' communicator, if this rank came as far, and why it does not hold."""
    name = f"survivors {comm._identity:x} {attempt}"
    made = None
    try:
        made = groups.join(comm, members, name, timeout)
        made.barrier(timeout)
    except Error as error:
        return made, error
    finally:
        groups.forget(name)
    return made, None
