"""The side of every rank but 0 in the rendezvous: find rank 0, take the memory, wait for the word."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import NoReturn

from gpucomm import errors
from gpucomm.errors import CollectiveTimeoutError, Error, PeerLostError, UnavailableError
from gpucomm.launch import wire
from gpucomm.launch.host import Attached
from gpucomm.launch.patience import Patience
from gpucomm.launch.ranks import Ranks

__all__ = ["connect", "join", "try_connect"]

# Seconds beyond the own deadline in which rank 0 may still say which ranks are missing.
_LAST_WORD = 0.5


def connect(name: str, ranks: Ranks, patience: Patience) -> socket.socket:
    """Connect to rank 0, which may come later than we."""
    for _ in patience.attempts():
        connection = try_connect(name, ranks)
        if connection is not None:
            return connection
    raise CollectiveTimeoutError(
        f"rank {ranks.rank} of {ranks.world} waited {patience.timeout:g} s for rank 0, which did not come"
        f" (job {ranks.job!r}, told by {ranks.source})"
    )


def try_connect(name: str, ranks: Ranks) -> socket.socket | None:
    """Connect once; None where nobody listens."""
    connection = wire.open_socket()
    try:
        connection.setblocking(False)  # a full queue must not hold us beyond the deadline
        connection.connect(name)
    except (ConnectionError, FileNotFoundError, BlockingIOError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise UnavailableError(
            f"rank {ranks.rank} of {ranks.world} may not connect to rank 0: {error.strerror}"
        ) from None
    pid, uid = wire.peer(connection)
    if not wire.is_ours(connection):
        connection.close()
        raise UnavailableError(
            f"rank {ranks.rank}: the address of this job is held by process {pid} of user {uid},"
            " not by rank 0"
        )
    return connection


def join(
    connection: socket.socket, ranks: Ranks, patience: Patience, attach: Callable[[int], Attached]
) -> Attached:
    """Take part in the meeting; see `rendezvous.meet`."""
    with connection:
        guest = _Guest(connection, ranks, patience)
        left = max(0.0, patience.deadline - time.monotonic())
        guest.say(wire.hello(ranks.rank, ranks.world, left, ranks.settings))
        memory = guest.await_memory()
        try:
            attached = attach(memory)
        except BaseException as error:
            guest.say({"gpucomm": "failed", "text": f"{type(error).__name__}: {error}"})
            raise
        finally:
            os.close(memory)
        try:
            guest.say({"gpucomm": "ready"})
            guest.expect("go")
        except BaseException:
            attached.close()
            raise
        return attached


class _Guest:
    def __init__(self, connection: socket.socket, ranks: Ranks, patience: Patience) -> None:
        self._connection = connection
        self._ranks = ranks
        self._patience = patience
        self._end = patience.deadline + _LAST_WORD
        self._inbox = wire.Inbox()
        self._descriptors: list[int] = []

    def say(self, message: wire.Message) -> None:
        try:
            self._connection.settimeout(max(0.001, self._end - time.monotonic()))
            self._connection.sendall(wire.frame(message))
        except OSError:
            return  # the reason comes with the next message, or its end does

    def await_memory(self) -> int:
        """The descriptor of the shared memory, owned by the caller."""
        self.expect("memory")
        if not self._descriptors:
            raise UnavailableError(
                f"rank {self._ranks.rank}: the memory of rank 0 did not arrive;"
                " this process may have too many open files (ulimit -n)"
            )
        return self._descriptors.pop()

    def expect(self, kind: str) -> None:
        """Wait for one message of rank 0."""
        message = self._inbox.take()
        while message is None:
            self._receive()
            message = self._inbox.take()
        if message["gpucomm"] != kind:
            self._fail(message)

    def _receive(self) -> None:
        """Take what has come, or look whether to wait on."""
        try:
            self._connection.settimeout(max(0.001, self._patience.left(self._end)))
            flags = socket.MSG_CMSG_CLOEXEC
            data, descriptors, _, _ = socket.recv_fds(self._connection, 4096, 1, flags)
        except TimeoutError:
            self._patience.look()
            if time.monotonic() < self._end:
                return
            raise CollectiveTimeoutError(
                f"rank {self._ranks.rank} of {self._ranks.world} waited {self._patience.timeout:g} s for the"
                " others: rank 0 came, but stopped answering"
            ) from None
        except OSError:
            data, descriptors = b"", []
        self._descriptors += descriptors
        if not data:
            self._patience.look()  # which may say why
            raise PeerLostError(f"rank 0 of {self._ranks.world} ended while the job started")
        self._inbox.feed(data)

    def _fail(self, message: wire.Message) -> NoReturn:
        kind = getattr(errors, str(message.get("kind")), None)
        if not (isinstance(kind, type) and issubclass(kind, Error)):
            kind = UnavailableError
        raise kind(str(message.get("text", message)))
