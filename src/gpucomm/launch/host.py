"""Rank 0's side of the rendezvous: wait for all, hand out the memory, let all go at once."""

from __future__ import annotations

import contextlib
import os
import re
import select
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol, TypeVar

from gpucomm.errors import CollectiveTimeoutError, Error, MismatchError, PeerLostError, UnavailableError
from gpucomm.launch import wire
from gpucomm.launch.patience import Patience
from gpucomm.launch.ranks import Ranks

__all__ = ["Attached", "Host"]

_HELLO_PATIENCE = 5.0  # seconds in which a connection must say who it is
_LATECOMERS = 2.0  # seconds in which ranks that still come hear why the job does not start


class _Closable(Protocol):
    def close(self) -> None: ...


Attached = TypeVar("Attached", bound=_Closable)


@dataclass
class _Caller:
    """One connection; its rank is -1 until it has said who it is."""

    connection: socket.socket
    give_up: float
    rank: int = -1
    pid: int = 0
    ready: bool = False
    inbox: wire.Inbox = field(default_factory=wire.Inbox)


class Host:
    """The meeting, seen from rank 0."""

    def __init__(self, listener: socket.socket, ranks: Ranks, patience: Patience) -> None:
        self._listener = listener
        self._world = ranks.world
        self._settings = ranks.settings
        self._patience = patience
        self._deadline = patience.deadline  # or that of a guest
        self._guests: dict[int, _Caller] = {}
        self._strangers: list[_Caller] = []
        self._refused: list[_Caller] = []
        self._selector = selectors.PollSelector()  # which needs no descriptor: there may be none left
        self._selector.register(listener, selectors.EVENT_READ)

    def gather(self) -> None:
        """Return when every rank has said hello."""
        while len(self._guests) < self._world - 1:
            self._step()

    def share(self, memory: int) -> None:
        """Send the descriptor to every guest."""
        for guest in self._guests.values():
            try:
                socket.send_fds(guest.connection, [wire.frame({"gpucomm": "memory"})], [memory])
            except OSError:
                self._lost(guest)

    def collect(self) -> None:
        """Return when every guest has attached."""
        while not all(guest.ready for guest in self._guests.values()):
            self._step()

    def release(self) -> None:
        """Let all go; who ends from now on is noticed by the communicator."""
        self._tell({"gpucomm": "go"}, self._callers)

    def refuse(self, error: BaseException) -> None:
        """Tell every rank why the job does not start, those who are about to come too."""
        text = str(error) if isinstance(error, Error) else repr(error)
        if not (isinstance(error, Error) and re.search(r"\brank \d", text)):
            text = f"rank 0 could not start the job: {text}"
        kind = type(error).__name__ if isinstance(error, Error) else UnavailableError.__name__
        message = {"gpucomm": "error", "kind": kind, "text": text}
        self._tell(message, self._callers)
        know = self._patience.ended or not isinstance(error, Error)
        with contextlib.suppress(UnavailableError):
            self._tell_newcomers(message, 0.0 if know else _LATECOMERS)

    def close(self) -> None:
        """Close every connection."""
        for caller in self._callers:
            caller.connection.close()
        self._selector.close()
        self._listener.close()

    @property
    def _callers(self) -> list[_Caller]:
        return [*self._guests.values(), *self._refused, *self._strangers]

    def _tell_newcomers(self, message: wire.Message, patience: float) -> None:
        """Tell those who have connected, but were not looked at yet, and who come in so many seconds."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        end = min(self._deadline, time.monotonic() + patience)
        while True:
            left = end - time.monotonic() if len(self._callers) < self._world - 1 else 0.0
            if not poll.poll(max(0.0, 1000 * left)):
                return
            known = len(self._strangers)
            self._accept()
            self._tell(message, self._strangers[known:])

    def _tell(self, message: wire.Message, callers: Sequence[_Caller]) -> None:
        data = wire.frame(message)
        for caller in callers:
            try:
                caller.connection.send(data)
            except OSError:
                continue  # it has ended; the others must hear all the same

    def _step(self) -> None:
        self._patience.look()
        now = time.monotonic()
        if now >= self._deadline:
            self._late()
        for stranger in [caller for caller in self._strangers if now >= caller.give_up]:
            self._forget(stranger)
        end = min([self._deadline, *(caller.give_up for caller in self._strangers)])
        for key, _ in self._selector.select(self._patience.left(end)):
            if key.data is None:
                self._accept()
            else:
                self._read(key.data)

    def _accept(self) -> None:
        """Take one connection, if there is one."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            raise UnavailableError(
                f"rank 0 of {self._world} could not take a rank's connection: {error.strerror} (the limit of"
                " open files is ulimit -n)"
            ) from None
        if not wire.is_ours(connection):
            connection.close()
            return
        connection.setblocking(False)
        caller = _Caller(connection, time.monotonic() + _HELLO_PATIENCE)
        self._strangers.append(caller)
        self._selector.register(connection, selectors.EVENT_READ, caller)

    def _forget(self, stranger: _Caller) -> None:
        self._strangers.remove(stranger)
        self._selector.unregister(stranger.connection)
        stranger.connection.close()

    def _read(self, caller: _Caller) -> None:
        try:
            data = caller.connection.recv(4096)
            caller.inbox.feed(data)
            message = caller.inbox.take()
        except BlockingIOError:
            return
        except (OSError, ValueError, RecursionError):
            data, message = b"", None
        if message is not None and caller.rank < 0:
            self._welcome(caller, message)
        elif message is not None:
            self._answered(caller, message)
        elif not data and caller.rank < 0:
            self._forget(caller)
        elif not data:
            self._lost(caller)

    def _welcome(self, caller: _Caller, message: wire.Message) -> None:
        """Admit a rank, or end the start of the job because it does not fit."""
        wrong = wire.unfit(message, self._world, self._settings)
        if wrong is None:
            self._forget(caller)
            return
        self._strangers.remove(caller)
        self._refused.append(caller)  # until it fits: it must hear the reason too
        if wrong:
            raise MismatchError(wrong)
        caller.rank, caller.pid = message["rank"], wire.peer(caller.connection)[0]
        if caller.rank == 0 or caller.rank in self._guests:
            other = self._guests[caller.rank].pid if caller.rank else os.getpid()
            raise MismatchError(
                f"two processes say that they are rank {caller.rank}: pids {other} and {caller.pid}"
            )
        if caller.pid != message.get("pid"):
            raise MismatchError(
                f"rank {caller.rank} is in another PID namespace (its pid is {message.get('pid')}, seen from"
                f" rank 0 {caller.pid or 'none'}), where ranks could not see each other end: start all ranks"
                " of a machine in one (docker run --pid)"
            )
        self._refused.remove(caller)
        self._guests[caller.rank] = caller
        self._deadline = min(self._deadline, time.monotonic() + message["patience"])

    def _answered(self, guest: _Caller, message: wire.Message) -> None:
        if message["gpucomm"] == "failed":
            raise UnavailableError(f"rank {guest.rank} could not join: {message.get('text', '')}")
        guest.ready = message["gpucomm"] == "ready"

    def _lost(self, guest: _Caller) -> NoReturn:
        self._patience.look()  # which may say why
        raise PeerLostError(
            f"rank {guest.rank} (pid {guest.pid}) of {self._world} ended while the job started"
        )

    def _late(self) -> NoReturn:
        here = sorted([0, *self._guests])
        missing = sorted(set(range(self._world)) - set(here))
        waited = f"the {self._world} ranks did not start within {self._patience.timeout:g} s"
        if missing:
            raise CollectiveTimeoutError(f"{waited}: ranks {here} came, ranks {missing} did not")
        silent = [guest.rank for guest in self._guests.values() if not guest.ready]
        raise CollectiveTimeoutError(f"{waited}: all came, but ranks {sorted(silent)} stopped answering")
