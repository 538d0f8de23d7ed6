"""Collectives on lists of arrays: small ones share messages, so that many cost little more than one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gpucomm import _core
from gpucomm.arrays import empty_like
from gpucomm.comm import seconds_to_wait
from gpucomm.errors import Error, InvalidArgumentError, UnsupportedTypeError

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["CoalescedWork", "run"]

_Put = Callable[[Sequence[Any]], None]


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
            InvalidArgumentError: timeout is not positive and finite; the call goes on.
            Error: as the collective.
        """
        return self._finish(timeout, host=False)

    def synchronize(self, timeout: float | None = None) -> Any:
        """As `wait`, but the host waits for arrays on a device too, whose stream only would.

        Args:
            timeout: as in wait.

        Returns:
            As wait.

        Raises:
            Error: as the collective; what went wrong on the device.
        """
        return self._finish(timeout, host=True)

    def done(self) -> bool:
        """Whether all messages have ended, well or not; the results are in place after `wait`."""
        return all(message.done() for message in self._messages)

    def _finish(self, timeout: float | None, host: bool) -> Any:
        end = self._end(timeout)
        try:
            for message in self._messages:
                message.finish(end, host)
        except Error:
            for message in self._messages:
                message.give_up()
            raise
        return self._result

    def _end(self, timeout: float | None) -> float | None:
        comm = self._messages[0].comm if self._messages else None
        seconds = seconds_to_wait(timeout, f" (rank {comm.rank} of {comm.world})" if comm else "")
        return None if seconds is None else time.monotonic() + seconds

    @property
    def result(self) -> Any:
        """The list of a call that is done, with its results; raises its error."""
        if not self.done():
            raise InvalidArgumentError("the call is not done yet: wait() first")
        return self.wait()


class _Message:
    """One message of so many elements; `put` takes the results of its arrays, in their order."""

    def __init__(
        self, comm: Communicator, arrays: list[Any], outs: list[Any] | None, count: int, put: _Put
    ) -> None:
        self.comm, self._arrays, self._outs, self._count, self._put = comm, arrays, outs, count, put
        self._result: Any = None
        self._work: _core.Work | None = None
        self._open = True
        self._lock = threading.RLock()  # of threads that wait; again: a signal's handler may wait too

    def start(self, collective: str, digest: int, reads: bool, writes: bool, how: dict[str, Any]) -> None:
        """Issues the call; a blocking one ends here."""
        raise NotImplementedError

    def finish(self, end: float | None, host: bool) -> None:
        """Waits until the clock says `end` and unpacks, the first time; `host`: for a device too."""
        if self._work is not None:
            wait = self._work.synchronize if host else self._work.wait
            self._result = wait(None if end is None else max(0.001, end - time.monotonic()))
            self._close()

    def give_up(self) -> None:
        """One of a list's has failed: lets the arrays of this one go, where it has ended too."""
        with self._lock:  # another thread may be unpacking it
            if self._work is not None and self._work.done():
                self._let_go()

    def done(self) -> bool:
        return self._work is None or self._work.done()

    def _take(self, issued: Any, how: dict[str, Any]) -> None:
        if how["async_op"]:
            self._work = issued
        else:
            self._result = issued
            self._close()

    def _close(self) -> None:
        """Unpacks, the first time that it succeeds; who comes meanwhile waits until the results are there."""
        with self._lock:
            if self._open:
                self._unpack()
                self._open = False
                self._give_back()

    def _unpack(self) -> None:
        self._put(self._result)

    def _give_back(self) -> None:
        """What was held until the results are in place."""

    def _let_go(self) -> None:
        """Nothing will be written into the arrays any more."""


class _Single(_Message):
    """An array by itself."""

    def start(self, collective: str, digest: int, reads: bool, writes: bool, how: dict[str, Any]) -> None:
        if self._outs is not None:
            how = {**how, "out": self._outs[0]}
        self._take(getattr(self.comm, collective)(self._arrays[0], **how), how)

    def _unpack(self) -> None:
        self._put([self._result])


class _Staged(_Message):
    """A pack of arrays on a device, which that puts together and takes apart by itself."""

    def start(self, collective: str, digest: int, reads: bool, writes: bool, how: dict[str, Any]) -> None:
        self._take(self.comm._packed(collective, self._arrays, digest, outs=self._outs, **how), how)


class _Pack(_Message):
    """A pack in host memory, in a buffer of the arrays' library."""

    def start(self, collective: str, digest: int, reads: bool, writes: bool, how: dict[str, Any]) -> None:
        self._take_buffer()
        self._writes = writes
        if reads:
            _core.copy_pack(self._arrays, self._pack, True)
        self._take(self.comm._packed(collective, self._pack, digest, **how), how)
        self._awaiting = _core.Awaiting(self._targets if writes and self._open else [])

    @property
    def _targets(self) -> list[Any]:
        return self._arrays if self._outs is None else self._outs

    def _unpack(self) -> None:
        if self._writes:
            _core.copy_pack(self._targets, self._pack, False)

    def _let_go(self) -> None:
        if self._work is not None:
            self._awaiting.release()

    def _take_buffer(self) -> None:
        """The last buffer of this dtype where it is free: memory that was touched before is much quicker."""
        like = self._arrays[0]
        self._key = (type(like), str(like.dtype))
        self._buffer = _buffers(self.comm).pop(self._key, None)
        if self._buffer is None or len(self._buffer) < self._count:
            self._buffer = empty_like(like, (self._count,))
        self._pack = self._buffer[: self._count]

    def _give_back(self) -> None:
        _buffers(self.comm)[self._key] = self._buffer
        self._pack = self._buffer = None
        self._let_go()


class _Gathering(_Pack):
    """A pack of all_gather: its results are new arrays where there are none to take them."""

    def _unpack(self) -> None:
        world, count = self.comm.world, self._count
        shapes = [(world * (x.shape or (1,))[0], *x.shape[1:]) for x in self._arrays]
        outs = self._outs
        if outs is None:
            outs = [empty_like(x, s) for x, s in zip(self._arrays, shapes, strict=True)]
        views = [out.reshape(s) for out, s in zip(outs, shapes, strict=True)]
        for rank in range(world):
            parts = [v[rank * len(v) // world : (rank + 1) * len(v) // world] for v in views]
            _core.copy_pack(parts, self._result[rank * count : (rank + 1) * count], False)
        self._put(outs)


def _buffers(comm: Communicator) -> dict[Any, Any]:
    buffers: dict[Any, Any] = vars(comm).setdefault("_pack_buffers", {})
    return buffers


def run(
    comm: Communicator,
    collective: str,
    xs: Sequence[Any] | None,
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
        xs: arrays of any shapes and dtypes, in the same order with the same counts on all ranks; of
            broadcast None will do on all ranks but the root.
        out: None, or the arrays that get the results, one for each of xs; of reduce on the root only.
        counts: must be None.
        error: must be None.
        how: the collective's other keywords.

    Returns:
        out or xs, of all_gather a list of new arrays; or a CoalescedWork if async_op.

    Raises:
        Error: as the collective; a bad argument before anything was sent.
    """
    for name, given in (("counts", counts), ("error", error)):
        if given is not None:
            raise InvalidArgumentError(
                f"{name} is for one array, not for a list (rank {comm.rank} of {comm.world})"
            )
    is_root = how.get("root", -1) == comm.rank
    if xs is None:  # of broadcast
        if is_root:
            raise InvalidArgumentError(
                f"x must be a list of arrays on the root, got None (rank {comm.rank} of {comm.world})"
            )
        xs, out = out, None
    outs = _listed(comm, out) if collective != "reduce" or is_root else None
    reads, writes = _directions(collective, is_root, outs is not None)
    gathered: list[Any] = [None] * len(xs)
    gathers = collective == "all_gather"
    messages: list[_Message] = []
    parts = comm.world if gathers else 1
    packs = comm._plan_packs(list(xs), outs, parts, reads, writes, how.get("op"), how.get("scale"))
    _check_likes(comm, xs, outs, gathers, packs)
    for places, count, digest, device in packs:
        kind: type[_Message] = _Gathering if gathers else _Pack
        if device or len(places) == 1:
            kind = _Single if len(places) == 1 else _Staged
        into = None if outs is None else [outs[i] for i in places]
        made = kind(comm, [xs[i] for i in places], into, count, partial(_put, gathered, places))
        made.start(collective, digest, reads, writes, how)
        messages.append(made)
    fresh = gathered if gathers else xs
    result = fresh if outs is None else out
    return CoalescedWork(result, messages) if how["async_op"] else result


def _listed(comm: Communicator, out: Any) -> list[Any] | None:
    if out is None:
        return None
    if isinstance(out, (list, tuple)):
        return list(out)
    raise InvalidArgumentError(
        f"out must be a list of arrays, as x is, got {type(out).__name__} (rank {comm.rank} of {comm.world})"
    )


def _check_likes(
    comm: Communicator, xs: Sequence[Any], outs: list[Any] | None, gathers: bool, packs: Sequence[Any]
) -> None:
    """Packs and results are made like the arrays: what none can be made like is refused, ere others begin."""
    makes = gathers and outs is None
    for places, _, _, device in packs:
        packed = len(places) > 1 and not device
        for i in places:
            if (makes and not hasattr(xs[i], "new_empty")) or (packed and i == places[0]):
                _check_has(comm, xs[i], f"x[{i}]", "dtype")
            if packed and gathers:
                _check_has(comm, xs[i], f"x[{i}]", "shape")
            if packed and gathers and outs is not None:
                _check_has(comm, outs[i], f"out[{i}]", "reshape")


def _check_has(comm: Communicator, x: Any, name: str, attribute: str) -> None:
    if not hasattr(x, attribute):
        raise UnsupportedTypeError(
            f"{name}, a {type(x).__name__}, has no {attribute}, which this call of a list needs: pass it by"
            f" itself, with out= for a new result (rank {comm.rank} of {comm.world})"
        )


def _put(results: list[Any], places: Sequence[int], made: Sequence[Any]) -> None:
    for place, one in zip(places, made, strict=True):
        results[place] = one


def _directions(collective: str, is_root: bool, has_outs: bool) -> tuple[bool, bool]:
    """Whether this rank's arrays are read, and its arrays, or those for the results, written."""
    if collective == "broadcast":
        return is_root, has_outs or not is_root
    if collective == "reduce":
        return True, is_root
    return True, has_outs or collective == "all_reduce"
