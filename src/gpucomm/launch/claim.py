"""One rank 0 a job: it holds a name of the job's for as long as its communicator is open.

The address of a meeting is free again when all have met. A second job of the same key would meet there too,
and the two could mix.
"""

from __future__ import annotations

import os
import socket

from gpucomm.errors import MismatchError
from gpucomm.launch import wire
from gpucomm.launch.guest import try_connect
from gpucomm.launch.patience import Patience
from gpucomm.launch.ranks import Ranks

__all__ = ["Claim", "claim"]

_MOMENT = 0.5  # seconds for which a process that ends, or a child just forked, may still hold a name


class Claim:
    """The name of a job, held by this process; a forked child lets it go."""

    _of: dict[str, Claim] = {}  # noqa: RUF012, one for each process

    def __init__(self, name: str, held: socket.socket) -> None:
        self._name, self._held = name, held

    def release(self) -> None:
        """Lets others be rank 0 of such a job. Again: nothing."""
        if self._of.get(self._name) is self:
            del self._of[self._name]
        self._held.close()

    @classmethod
    def take(cls, name: str) -> Claim | None:
        """The claim of this name, which may be this process's already; None: another process holds it."""
        if name not in cls._of:
            held = wire.listen(name, 1)
            if held is None:
                return None
            cls._of[name] = cls(name, held)
        return cls._of[name]

    @classmethod
    def _forked(cls) -> None:
        for claimed in list(cls._of.values()):
            claimed.release()


os.register_at_fork(after_in_child=Claim._forked)


def claim(ranks: Ranks) -> Claim:
    """Takes the name of rank 0's job.

    Args:
        ranks: who this process is: rank 0.

    Raises:
        MismatchError: another process is rank 0 of such a job.
        UnavailableError: another user's process holds the name, or there are no unix sockets.
    """
    name = wire.address(ranks.job, "claim")
    for _ in Patience(_MOMENT).attempts():
        claimed = Claim.take(name)
        if claimed is not None:
            return claimed
    pid = 0
    if connection := try_connect(name, ranks):
        with connection:
            pid = wire.peer(connection)[0]
    raise MismatchError(
        f"{f'process {pid}' if pid else 'another process'} is rank 0 of a job of the same key ({ranks.job!r},"
        f" told by {ranks.source}), and has not closed its communicator: give each job a GPUCOMM_JOB or"
        " MASTER_PORT of its own, alike on all its ranks, or end that one first (rank 0 of"
        f" {ranks.world}, pid {os.getpid()})"
    )
