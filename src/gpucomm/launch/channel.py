"""Whole messages between a local world and its workers, over a socket pair that only they have.

Messages are pickles: both ends are one program of one user, and no other process has the socket.
"""

from __future__ import annotations

import socket
import struct
from collections import deque

__all__ = ["Channel", "receive", "send"]

_LENGTH = struct.Struct("=Q")
_BLOCK = 1 << 20  # bytes read or written at once


class Channel:
    """The world's end: never blocks, so that one slow worker holds nobody up."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._outgoing: deque[memoryview] = deque()
        self._incoming = bytearray()

    def queue(self, message: bytes) -> None:
        """Take a message to be sent by `flush`; it is not copied."""
        self._outgoing += [memoryview(_LENGTH.pack(len(message))), memoryview(message)]

    def flush(self) -> bool:
        """Send what goes without waiting; True when nothing is left.

        Raises:
            ConnectionError: the worker has ended.
        """
        while self._outgoing:
            try:
                sent = self.connection.send(self._outgoing[0][:_BLOCK])
            except BlockingIOError:
                return False
            rest = self._outgoing.popleft()[sent:]
            if rest:
                self._outgoing.appendleft(rest)
        return True

    def receive(self) -> list[bytes]:
        """The messages that are whole by now.

        Raises:
            EOFError: the worker has ended.
        """
        try:
            data = self.connection.recv(_BLOCK)
        except BlockingIOError:
            return []
        except ConnectionError:
            data = b""
        if not data:
            raise EOFError
        self._incoming += data
        return self._whole()

    def _whole(self) -> list[bytes]:
        messages = []
        while len(self._incoming) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._incoming)[0]
            if len(self._incoming) < end:
                break
            messages.append(bytes(memoryview(self._incoming)[_LENGTH.size : end]))
            del self._incoming[:end]
        return messages


def send(connection: socket.socket, message: bytes) -> None:
    """The worker's end: send one message."""
    connection.sendall(_LENGTH.pack(len(message)))
    connection.sendall(message)


def receive(connection: socket.socket) -> bytes | None:
    """The worker's end: wait for one message; None when the world has ended."""
    try:
        header = _exactly(connection, _LENGTH.size)
        return _exactly(connection, _LENGTH.unpack(header)[0])
    except (EOFError, ConnectionError):
        return None


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = connection.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return bytes(data)
