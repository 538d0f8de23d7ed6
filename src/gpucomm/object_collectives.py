"""Collectives of plain Python objects: their lengths travel first, from all to all, then their bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucomm import _core
from gpucomm.errors import Error, InvalidArgumentError, MismatchError, UnavailableError, UnsupportedTypeError
from gpucomm.object_work import side_of
from gpucomm.objects import decode, encode
from gpucomm.turns import turn

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["broadcast_object", "gather_objects"]

_OBJECT, _REFUSED = 0, 1  # what the bytes are: an object, or the sentence why there is none
_Message = tuple[bytes, int, Error | None]  # what it is, and the error to raise once all know
_NOTHING: _Message = (b"", _OBJECT, None)
_SHORT = 64 << 10  # bytes up to which "auto" is not worth a measurement of the links


def broadcast_object(
    comm: Communicator, obj: Any, root: int, pickle: bool, timeout: float | None, async_op: bool
) -> Any:
    """See `Communicator.broadcast_object`."""
    root = _whole(comm, "broadcast_object", root)
    message = _encoded(comm, obj, pickle) if comm.rank == root else _NOTHING
    return _issue(comm, async_op, timeout, _broadcast, obj, message, root, pickle)


def gather_objects(
    comm: Communicator, obj: Any, root: int | None, pickle: bool, timeout: float | None, async_op: bool
) -> Any:
    """See `Communicator.gather_objects`."""
    if root is not None:
        root = _whole(comm, "gather_objects", root)
    return _issue(comm, async_op, timeout, _gather, _encoded(comm, obj, pickle), root, pickle)


def _whole(comm: Communicator, call: str, root: Any) -> int:
    number = _core.whole(root)
    if number is None:
        rule = f"root must be a whole number in [0, {comm.world}), got {_core.shown(root)}"
        raise comm._refused(call, InvalidArgumentError(rule))
    return number


def _issue(
    comm: Communicator, async_op: bool, timeout: float | None, call: Callable[..., Any], *args: Any
) -> Any:
    args += (timeout,)
    return side_of(comm, timeout).start(call, *args) if async_op else call(comm, *args)


def _broadcast(
    comm: Communicator, obj: Any, message: _Message, root: int, pickle: bool, timeout: float | None
) -> Any:
    with turn(comm), comm._parts_of("broadcast_object"):
        begin, mine = time.monotonic(), comm.rank == root
        content, kind, error = message
        header = np.array([[len(content), kind, root]], np.int64)
        headers = comm.all_gather(header, algorithm="direct", segments=1, timeout=timeout)
        _check_roots(comm, headers[:, 2].tolist())
        size_bytes, kind, _ = headers[root].tolist()
        data = np.frombuffer(content, np.uint8) if mine else _room(comm, size_bytes)
        comm.broadcast(data, root, timeout=_left(comm, timeout, begin), **_how(size_bytes))
        if error:
            raise error
        return obj if mine else _decoded(comm, data, kind, root, pickle)


def _gather(
    comm: Communicator, message: _Message, root: int | None, pickle: bool, timeout: float | None
) -> list[Any] | None:
    with turn(comm), comm._parts_of("gather_objects"):
        begin = time.monotonic()
        content, kind, error = message
        header = np.array([[len(content), kind]], np.int64)
        headers = comm.all_gather(header, algorithm="direct", segments=1, timeout=timeout)
        counts = headers[:, 0].tolist()
        gathered = _gathered(comm, content, counts, root, _left(comm, timeout, begin))
        if error:
            raise error
        # A refusal concerns all ranks, also those that get nothing: its sentence is on those that do.
        if gathered is None:
            _check_all(comm, headers[:, 1])
            return None
        ends = np.cumsum(counts)
        refused = np.flatnonzero(headers[:, 1])
        order = [int(refused[0])] if len(refused) else range(comm.world)
        parts = {r: gathered[ends[r] - counts[r] : ends[r]] for r in order}
        return [_decoded(comm, data, int(headers[r, 1]), r, pickle) for r, data in parts.items()]


def _gathered(comm: Communicator, content: bytes, counts: list[int], root: int | None, left: float) -> Any:
    how: dict[str, Any] = {"counts": counts, "timeout": left, **_how(max(counts))}
    data = np.frombuffer(content, np.uint8)
    try:
        return comm.all_gather(data, **how) if root is None else comm.gather(data, root, **how)
    except MemoryError:  # the others have been told
        where = f"(rank {comm.rank} of {comm.world})"
        raise UnavailableError(f"there is no memory for objects of {sum(counts)} bytes {where}") from None


def _room(comm: Communicator, size_bytes: int) -> Any:
    try:
        return np.empty(size_bytes, np.uint8)
    except MemoryError:  # the others wait in the broadcast
        error = UnavailableError(f"there is no memory for an object of {size_bytes} bytes")
        raise comm._refused("broadcast_object", error) from None


def _left(comm: Communicator, timeout: float | None, begin: float) -> float:
    """Seconds that are left to the bytes: the call's time is for the lengths and them together."""
    whole = comm.timeout if timeout is None else float(timeout)  # which the lengths have gone by already
    return max(0.001, begin + whole - time.monotonic())


def _how(size_bytes: int) -> dict[str, Any]:
    return {"algorithm": "direct", "segments": 1} if size_bytes <= _SHORT else {}


def _encoded(comm: Communicator, obj: Any, pickle: bool) -> _Message:
    error: Error
    try:
        return encode(obj, pickle), _OBJECT, None
    except (InvalidArgumentError, UnsupportedTypeError) as refused:
        error = refused
    except MemoryError:  # which has no text
        error = UnavailableError("there is no memory for the bytes of the object")
    told = str(error).encode(errors="backslashreplace")
    return told, _REFUSED, type(error)(f"{error} (rank {comm.rank} of {comm.world})")


def _decoded(comm: Communicator, data: Any, kind: int, source: int, pickle: bool) -> Any:
    where = f"(rank {comm.rank} of {comm.world})"
    if kind == _REFUSED:
        raise UnsupportedTypeError(f"rank {source} has no object to send: {data.tobytes().decode()} {where}")
    try:
        return decode(data.tobytes(), pickle)
    except MemoryError:
        raise UnavailableError(f"there is no memory for the object of rank {source} {where}") from None
    except Error as error:
        raise type(error)(f"the object of rank {source}: {error} {where}") from None


def _check_roots(comm: Communicator, roots: list[int]) -> None:
    """Two ranks that each send a few bytes would not notice: no root waits for such a message to be taken."""
    where = f"(rank {comm.rank} of {comm.world})"
    for rank, root in enumerate(roots):
        if root != roots[0]:
            raise MismatchError(
                f"broadcast_object of root {roots[0]} on rank 0, of root {root} on rank {rank} {where}"
            )
    if not 0 <= roots[0] < comm.world:
        raise InvalidArgumentError(f"root must be in [0, {comm.world}), got {roots[0]} {where}")


def _check_all(comm: Communicator, kinds: Any) -> None:
    for rank in np.flatnonzero(kinds):
        raise UnsupportedTypeError(
            f"rank {rank} has no object to send; its own error says why (rank {comm.rank} of {comm.world})"
        )
