"""Collectives on lists of arrays: small ones share messages, so that many cost little more than one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpucomm import _core
from gpucomm.arrays import empty_like
from gpucomm.errors import InvalidArgumentError

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["CoalescedWork", "run"]


class CoalescedWork:
    """The handle of an asynchronous collective on a list of arrays."""

    def __init__(self, xs: Sequence[Any], messages: list[_Message]) -> None:
        self._xs, self._messages = xs, messages

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for the end, puts the results in place and returns the list; as `Work.wait`.

        Args:
            timeout: seconds from now for all messages together.

        Returns:
            The list or tuple that was given.

        Raises:
            Error: as the collective.
        """
        end = None if timeout is None else time.monotonic() + timeout
        for message in self._messages:
            message.finish(end)
        return self._xs

    def done(self) -> bool:
        """Whether all messages have ended, well or not; the results are in place after `wait`."""
        return all(message.done() for message in self._messages)

    @property
    def result(self) -> Any:
        """The list of a call that is done, with its results; raises its error."""
        if not self.done():
            raise InvalidArgumentError("the call is not done yet: wait() first")
        return self.wait()


class _Message:
    """One message: an array by itself, or a pack of some."""

    def __init__(self, comm: Communicator, arrays: list[Any], count: int) -> None:
        self._comm, self._arrays = comm, arrays
        self._pack: Any = None
        self._buffer: Any = None
        self._work: _core.Work | None = None
        if len(arrays) > 1:
            self._take_buffer(count)

    def start(self, collective: str, digest: int, reads: bool, writes: bool, how: dict[str, Any]) -> None:
        """Issues the call; a blocking one ends here."""
        self._writes = writes
        if self._pack is None:
            self._work = getattr(self._comm, collective)(self._arrays[0], **how)
        else:
            if reads:
                _core.copy_pack(self._arrays, self._pack, True)
            self._work = self._comm._packed(collective, self._pack, digest, **how)
        if not how["async_op"]:
            self._work = None
            self._unpack()

    def finish(self, end: float | None) -> None:
        """Waits until the clock says `end` and unpacks, the first time."""
        if self._work is not None:
            self._work.wait(None if end is None else max(0.001, end - time.monotonic()))
            self._work = None
            self._unpack()

    def done(self) -> bool:
        return self._work is None or self._work.done()

    def _unpack(self) -> None:
        if self._pack is None:
            return
        if self._writes:
            _core.copy_pack(self._arrays, self._pack, False)
        _buffers(self._comm)[self._key] = self._buffer
        self._pack = self._buffer = None

    def _take_buffer(self, count: int) -> None:
        """The last buffer of this dtype where it is free: memory that was touched before is much quicker."""
        like = self._arrays[0]
        self._key = (type(like), str(like.dtype))
        self._buffer = _buffers(self._comm).pop(self._key, None)
        if self._buffer is None or len(self._buffer) < count:
            self._buffer = empty_like(like, (count,))
        self._pack = self._buffer[:count]


def _buffers(comm: Communicator) -> dict[Any, Any]:
    buffers: dict[Any, Any] = vars(comm).setdefault("_pack_buffers", {})
    return buffers


def run(comm: Communicator, collective: str, xs: Sequence[Any], *, out: Any = None, **how: Any) -> Any:
    """Runs all_reduce, reduce or broadcast on a list or tuple of arrays, which the communicator passes on.

    Args:
        comm: the communicator.
        collective: its name.
        xs: arrays of any shapes and dtypes, in the same order with the same counts on all ranks.
        out: must be None.
        how: the collective's other keywords.

    Returns:
        xs, or a CoalescedWork if async_op.

    Raises:
        Error: as the collective; a bad argument before anything was sent.
    """
    if out is not None:
        raise InvalidArgumentError(
            f"out is for one array, a list is reduced in place (rank {comm.rank} of {comm.world})"
        )
    is_root = how.get("root", -1) == comm.rank
    reads = collective != "broadcast" or is_root
    writes = not is_root if collective == "broadcast" else collective != "reduce" or is_root
    messages = []
    for places, count, digest in comm._plan_packs(list(xs), writes, how.get("op"), how.get("scale")):
        message = _Message(comm, [xs[i] for i in places], count)
        message.start(collective, digest, reads, writes, how)
        messages.append(message)
    return CoalescedWork(xs, messages) if how["async_op"] else xs
