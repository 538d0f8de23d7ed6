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

    def __init__(self, result: Sequence[Any], messages: list[_Message]) -> None:
        self._result, self._messages = result, messages

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for the end, puts the results in place and returns the list; as `Work.wait`.

        Args:
            timeout: seconds from now for all messages together.

        Returns:
            The list or tuple that was given; of all_gather a list of new arrays.

        Raises:
            Error: as the collective.
        """
        end = None if timeout is None else time.monotonic() + timeout
        for message in self._messages:
            message.finish(end)
        return self._result

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
        self._result: Any = None
        self._work: _core.Work | None = None
        if len(arrays) > 1:
            self._take_buffer(count)

    def start(self, collective: str, digest: int, reads: bool, writes: bool, how: dict[str, Any]) -> None:
        """Issues the call; a blocking one ends here."""
        self._writes = writes
        if self._pack is None:
            issued = getattr(self._comm, collective)(self._arrays[0], **how)
        else:
            if reads:
                _core.copy_pack(self._arrays, self._pack, True)
            issued = self._comm._packed(collective, self._pack, digest, **how)
        if how["async_op"]:
            self._work = issued
        else:
            self._result = issued
            self._unpack()

    def finish(self, end: float | None) -> None:
        """Waits until the clock says `end` and unpacks, the first time."""
        if self._work is not None:
            self._result = self._work.wait(None if end is None else max(0.001, end - time.monotonic()))
            self._work = None
            self._unpack()

    def done(self) -> bool:
        return self._work is None or self._work.done()

    def _unpack(self) -> None:
        if self._pack is None:
            return
        if self._writes:
            _core.copy_pack(self._arrays, self._pack, False)
        self._give_back()

    def _give_back(self) -> None:
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


class _Gathering(_Message):
    """A message of all_gather: its results are new arrays, which come into a list."""

    def __init__(
        self, comm: Communicator, arrays: list[Any], count: int, places: Sequence[int], results: list[Any]
    ) -> None:
        super().__init__(comm, arrays, count)
        self._places, self._results = places, results

    def _unpack(self) -> None:
        if self._pack is None:
            self._results[self._places[0]] = self._result
            return
        shapes = [tuple(x.shape) or (1,) for x in self._arrays]
        world, count = self._comm.world, len(self._pack)
        outs = [empty_like(x, (world * s[0], *s[1:])) for x, s in zip(self._arrays, shapes, strict=True)]
        for rank in range(world):
            parts = [out[rank * s[0] : (rank + 1) * s[0]] for out, s in zip(outs, shapes, strict=True)]
            _core.copy_pack(parts, self._result[rank * count : (rank + 1) * count], False)
        for place, out in zip(self._places, outs, strict=True):
            self._results[place] = out
        self._give_back()


def _buffers(comm: Communicator) -> dict[Any, Any]:
    buffers: dict[Any, Any] = vars(comm).setdefault("_pack_buffers", {})
    return buffers


def run(
    comm: Communicator,
    collective: str,
    xs: Sequence[Any],
    *,
    out: Any = None,
    counts: Any = None,
    error: Any = None,
    **how: Any,
) -> Any:
    """Runs a collective on a list or tuple of arrays, which the communicator passes on.

    Args:
        comm: the communicator.
        collective: all_reduce, reduce, broadcast or all_gather.
        xs: arrays of any shapes and dtypes, in the same order with the same counts on all ranks.
        out: must be None.
        counts: must be None.
        error: must be None.
        how: the collective's other keywords.

    Returns:
        xs, of all_gather a list of new arrays; or a CoalescedWork if async_op.

    Raises:
        Error: as the collective; a bad argument before anything was sent.
    """
    for name, given in (("out", out), ("counts", counts), ("error", error)):
        if given is not None:
            raise InvalidArgumentError(
                f"{name} is for one array, not for a list (rank {comm.rank} of {comm.world})"
            )
    reads, writes = _directions(collective, how.get("root", -1) == comm.rank)
    gathered: list[Any] = [None] * len(xs)
    gathers = collective == "all_gather"
    messages: list[_Message] = []
    for places, count, digest in comm._plan_packs(list(xs), writes, how.get("op"), how.get("scale")):
        arrays = [xs[i] for i in places]
        made = _Gathering(comm, arrays, count, places, gathered) if gathers else _Message(comm, arrays, count)
        made.start(collective, digest, reads, writes, how)
        messages.append(made)
    result = gathered if gathers else xs
    return CoalescedWork(result, messages) if how["async_op"] else result


def _directions(collective: str, is_root: bool) -> tuple[bool, bool]:
    """Whether this rank's arrays are read, and written."""
    if collective == "broadcast":
        return is_root, not is_root
    if collective == "reduce":
        return True, is_root
    return True, collective == "all_reduce"
