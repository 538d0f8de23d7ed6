"""What travels while ranks find each other: length-checked JSON over an abstract unix socket."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from gpucomm import _core
from gpucomm.errors import UnavailableError

__all__ = ["PROTOCOL", "Inbox", "Message", "address", "frame", "hello", "is_ours", "listen", "peer", "unfit"]

PROTOCOL = 3
LIMIT = 64 * 1024  # bytes; a stranger's length field must not make us wait for more
_LENGTH = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")

Message = dict[str, Any]


def address(job: str, what: int | str) -> str:
    """Name an abstract socket of `job`, say of its `what`-th init: no file, so nothing is left behind."""
    digest = hashlib.sha256(f"{job}/{what}".encode(errors="surrogateescape")).hexdigest()[:24]
    return f"\0gpucomm-{os.geteuid()}-{digest}"


def open_socket() -> socket.socket:
    """A unix socket; raises UnavailableError where this process is given none."""
    try:
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise _without(error) from None


def listen(name: str, backlog: int) -> socket.socket | None:
    """A listening socket, or None where the name is taken; raises UnavailableError where none can be had."""
    listener = open_socket()
    try:
        listener.bind(name)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise _without(error) from None
    return listener


def _without(error: OSError) -> UnavailableError:
    return UnavailableError(
        f"process {os.getpid()} can use no unix socket, by which ranks of a machine meet: {error.strerror}"
    )


def hello(rank: int, world: int, patience: float, settings: Sequence[str]) -> Message:
    """The first message of a rank.

    Args:
        rank: of the sender.
        world: number of ranks that the sender expects.
        patience: seconds until the sender gives up.
        settings: what all ranks must be given alike.
    """
    return {
        "gpucomm": "hello",
        "protocol": PROTOCOL,
        "version": _core.version,
        "rank": rank,
        "world": world,
        "pid": os.getpid(),
        "patience": patience,
        "settings": list(settings),
    }


def unfit(message: Message, world: int, settings: Sequence[str]) -> str | None:
    """Why the sender of a first message cannot join: "" if it can, None if it is a stranger.

    Args:
        message: what came first on a connection.
        world: number of ranks that rank 0 expects.
        settings: what rank 0 was given, of what must be alike.
    """
    if message["gpucomm"] != "hello":
        return None
    who = f"rank {message.get('rank')} (pid {message.get('pid')})"
    theirs = (message.get("protocol"), message.get("version"))
    if theirs != (PROTOCOL, _core.version):
        ours = f"{_core.version} (protocol {PROTOCOL})"
        return f"{who} runs gpucomm {theirs[1]} (protocol {theirs[0]}), rank 0 runs {ours}"
    patience = message.get("patience")
    if type(message.get("rank")) is not int or not isinstance(patience, (int, float)):
        return None
    if not 0 <= patience <= 1e9 or not _texts(message.get("settings"), len(settings)):
        return None
    if message.get("world") != world:
        return f"{who} expects {message.get('world')} ranks, rank 0 expects {world}"
    if not 0 <= message["rank"] < world:
        return f"{who} must have a rank below {world}"
    for ours, given in zip(settings, message["settings"], strict=True):
        if given != ours:
            return f"{who} was given {given}, rank 0 {ours}: give all ranks the same"
    return ""


def _texts(given: object, count: int) -> bool:
    return isinstance(given, list) and len(given) == count and all(isinstance(text, str) for text in given)


def frame(message: Mapping[str, object]) -> bytes:
    """The bytes of one message: four of length, then JSON; an overlong text is cut."""
    body = json.dumps(message).encode()
    if len(body) > LIMIT:
        body = json.dumps({**message, "text": str(message.get("text", ""))[: LIMIT // 16]}).encode()
    return _LENGTH.pack(len(body)) + body


class Inbox:
    """Collects bytes into messages; whatever is not one of ours is a ValueError."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Add what was received."""
        self._bytes += data

    def take(self) -> Message | None:
        """The next whole message, or None."""
        if len(self._bytes) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._bytes)
        if not 2 <= length <= LIMIT:
            raise ValueError(f"a message of {length} bytes")
        end = _LENGTH.size + length
        if len(self._bytes) < end:
            return None
        message = json.loads(bytes(self._bytes[_LENGTH.size : end]))
        del self._bytes[:end]
        if not isinstance(message, dict) or "gpucomm" not in message:
            raise ValueError("not a message of gpucomm")
        return message


def peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process at the other end, told by the kernel."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def is_ours(connection: socket.socket) -> bool:
    """Whether the other end runs as our own user."""
    pid, uid = peer(connection)
    return uid == os.geteuid() and (uid != _overflow_uid() or (pid > 0 and _may_signal(pid)))


def _overflow_uid() -> int:
    """What users are shown as that our user namespace does not know: it may be our own number too."""
    try:
        with open("/proc/sys/fs/overflowuid") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 65534


def _may_signal(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
