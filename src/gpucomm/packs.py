"""How the arrays of a list travel: by themselves, or several as one message."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucomm import _core
from gpucomm.arrays import empty_like
from gpucomm.errors import UnsupportedTypeError

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["Gathering", "Message", "Pack", "Single", "Staged"]

Put = Callable[[Sequence[Any]], None]


class Message:
    """One message of so many elements; `put` takes the results of its arrays, in their order."""

    def __init__(
        self, comm: Communicator, arrays: list[Any], outs: list[Any] | None, count: int, put: Put
    ) -> None:
        self.comm, self._arrays, self._outs, self._count, self._put = comm, arrays, outs, count, put
        self._work: _core.Work | None = None
        self._open = True
        self._lock = threading.RLock()  # of threads that wait; again: a signal's handler may wait too

    def start(self, collective: str, digest: int, reads: bool, writes: bool, how: dict[str, Any]) -> None:
        """Issues the call; a blocking one ends here."""
        raise NotImplementedError

    def finish(self, end: float | None, host: bool) -> None:
        """Waits until the clock says `end` and unpacks, the first time; `host`: for a device too."""
        if (work := self._work) is not None:  # of a pack another thread may let it go
            wait = work.synchronize if host else work.wait
            self._close(wait(None if end is None else max(0.001, end - time.monotonic())))

    def give_up(self) -> None:
        """One of a list's has failed: lets the arrays of this one go, where it has ended too."""
        with self._lock:  # another thread may be unpacking it
            if self._work is not None and self._work.done():
                self._let_go()

    def done(self) -> bool:
        """Whether the call has ended, well or not."""
        return (work := self._work) is None or work.done()

    def _take(self, issued: Any, how: dict[str, Any]) -> None:
        if how["async_op"]:
            self._work = issued
        else:
            self._close(issued)

    def _close(self, result: Any) -> None:
        """Unpacks, the first time that it succeeds; who comes meanwhile waits until the results are there."""
        with self._lock:
            if self._open:
                self._unpack(result)
                self._open = False
                self._give_back()

    def _unpack(self, result: Any) -> None:
        self._put(result)

    def _give_back(self) -> None:
        """What was held until the results are in place."""

    def _let_go(self) -> None:
        """Nothing will be written into the arrays any more."""


class Single(Message):
    """An array by itself."""

    def start(self, collective: str, digest: int, reads: bool, writes: bool, how: dict[str, Any]) -> None:
        """Issues the collective of one array."""
        if self._outs is not None:
            how = {**how, "out": self._outs[0]}
        self._take(getattr(self.comm, collective)(self._arrays[0], **how), how)

    def _unpack(self, result: Any) -> None:
        self._put([result])


class Staged(Message):
    """A pack of arrays on a device, which that puts together and takes apart by itself."""

    def start(self, collective: str, digest: int, reads: bool, writes: bool, how: dict[str, Any]) -> None:
        """Issues it with the arrays as they are."""
        self._take(self.comm._packed(collective, self._arrays, digest, outs=self._outs, **how), how)


class Pack(Message):
    """A pack in host memory, in a buffer of the arrays' library."""

    def start(self, collective: str, digest: int, reads: bool, writes: bool, how: dict[str, Any]) -> None:
        """Puts the arrays together, where they are read, and issues it."""
        self._take_buffer()
        self._writes = writes
        if reads:
            _core.copy_pack(self._arrays, self._pack, True)
        # Before the call begins: a library that is asked for its arrays may refuse.
        self._awaiting = _core.Awaiting(self._targets if writes and how["async_op"] else [])
        try:
            self._take(self.comm._packed(collective, self._pack, digest, **how), how)
        except BaseException:
            self._awaiting.release()
            raise

    @property
    def _targets(self) -> list[Any]:
        return self._arrays if self._outs is None else self._outs

    def _unpack(self, result: Any) -> None:
        if self._writes:
            _core.copy_pack(self._targets, self._pack, False)

    def _let_go(self) -> None:
        if self._work is not None:
            self._awaiting.release()

    def _take_buffer(self) -> None:
        """The last buffer of this dtype where it is free: memory that was touched before is much quicker."""
        like = self._arrays[0]
        self._key = (type(like), str(like.dtype))
        self._buffer, self._room = _buffers(self.comm).pop(self._key, (None, 0))
        if self._room < self._count or self._buffer is None:
            self._buffer, self._room = _buffer_like(like, self._count), self._count
        self._pack = self._buffer[: self._count]

    def _give_back(self) -> None:
        _buffers(self.comm)[self._key] = self._buffer, self._room
        self._let_go()
        self._pack = self._buffer = self._work = None  # its work has the message, or all ranks' messages


class Gathering(Pack):
    """A pack of all_gather: its results are new arrays where there are none to take them."""

    def start(self, collective: str, digest: int, reads: bool, writes: bool, how: dict[str, Any]) -> None:
        """Makes the results first: a library may refuse."""
        if self._outs is None:
            world = self.comm.world
            shapes = [(world * (x.shape or (1,))[0], *x.shape[1:]) for x in self._arrays]
            try:
                self._outs = [empty_like(x, s) for x, s in zip(self._arrays, shapes, strict=True)]
            except UnsupportedTypeError as error:
                where = f"(rank {self.comm.rank} of {world})"
                raise UnsupportedTypeError(f"{error} {where}") from None
            _core.check_writable(self._outs)
        super().start(collective, digest, reads, writes, how)

    def _unpack(self, result: Any) -> None:
        _core.copy_gathered(self._targets, result, self.comm.world)
        self._put(self._targets)


def _buffer_like(like: Any, count: int) -> Any:
    """No caller sees it: NumPy's will do where none can be made like the arrays."""
    try:
        return empty_like(like, (count,))
    except UnsupportedTypeError:
        return np.empty(count, np.from_dlpack(like).dtype)


def _buffers(comm: Communicator) -> dict[Any, tuple[Any, int]]:
    buffers: dict[Any, tuple[Any, int]] = vars(comm).setdefault("_pack_buffers", {})
    return buffers
