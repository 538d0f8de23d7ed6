"""Asynchronous collectives of objects: several messages each, on a thread and a communicator of their own."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gpucomm.comm import checked_timeout
from gpucomm.ending import ended_by_error
from gpucomm.errors import ClosedError, CollectiveTimeoutError, InvalidArgumentError
from gpucomm.turns import turn

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["ObjectWork", "Side", "side_of"]


class ObjectWork:
    """The handle of an asynchronous collective of objects."""

    def __init__(self, side: Side) -> None:
        self._side, self._ended = side, threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for the end and returns what the blocking call returns; as `Work.wait`.

        Args:
            timeout: seconds from now; once they have passed, all asynchronous collectives of objects fail.

        Returns:
            The object, or the list of objects.

        Raises:
            InvalidArgumentError: timeout is not positive and finite; the call goes on.
            ClosedError: this process was forked from the one that made the call, while that was under way.
            Error: as the blocking call.
        """
        timeout = None if timeout is None else checked_timeout(timeout, self._side.where)
        if not self.done():
            self._side.check_not_forked()
        if not self._ended.wait(timeout):
            self._side.comm.abort()
            raise CollectiveTimeoutError(
                f"a collective of objects has not ended within {timeout:g} s: all asynchronous ones end"
                f"{self._side.where}"
            )
        return self._outcome()

    synchronize = wait

    def done(self) -> bool:
        """Whether the call has ended, well or not."""
        return self._ended.is_set()

    @property
    def result(self) -> Any:
        """What a call that is done returns; raises its error."""
        if not self.done():
            raise InvalidArgumentError("the call is not done yet: wait() first")
        return self._outcome()

    def _outcome(self) -> Any:
        if self._error is not None:
            raise self._error.with_traceback(None)  # that of who waited before
        return self._value

    def _make(self, call: Callable[[], Any]) -> None:
        try:
            self._value = call()
        except BaseException as error:  # whoever waits for it raises it
            self._error = error.with_traceback(None)  # which would keep this work
        self._ended.set()


_Calls = queue.SimpleQueue[tuple[ObjectWork, Callable[[], Any]] | None]


class Side:
    """What makes such calls, in the order of their issue."""

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.where = comm, f" (rank {comm.rank} of {comm.world})"
        self._pid, self._lock, self._closed = os.getpid(), threading.Lock(), False
        self._last: Callable[[], ObjectWork | None] = lambda: None
        self._calls: _Calls = queue.SimpleQueue()
        # A daemon: others are joined at exit before any handler could end what they wait for.
        self._thread = threading.Thread(
            target=_make_all, args=(self._calls,), name="gpucomm-objects", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._calls.put, None).atexit = False
        _sides.add(self)
        atexit.unregister(_end_all)  # the last to be registered runs first: before what closes communicators
        atexit.register(_end_all)

    def start(self, call: Callable[..., Any], *args: Any) -> ObjectWork:
        """Issues `call(comm, *args)`."""
        self.check_not_forked()
        work = ObjectWork(self)
        with self._lock:
            if self._closed:  # behind the end of its queue nothing is made
                raise ClosedError(f"this communicator is closed{self.where}")
            self._calls.put((work, partial(call, self.comm, *args)))
            self._last = weakref.ref(work)  # what is under way is kept by the thread
        return work

    def check_not_forked(self) -> None:
        """A child of fork has no such thread: nothing would ever end its calls."""
        if os.getpid() != self._pid:
            raise ClosedError(
                "a communicator does not survive fork(): start ranks with gpucomm.local or gpucomm run"
                f"{self.where}"
            )

    def settle(self, at_once: bool) -> None:
        """Waits for calls under way; `at_once`: ends them with an error, on every rank."""
        last = self._last()
        if last is None or last.done() or os.getpid() != self._pid:
            return
        if at_once:
            self.comm.abort()
        last._ended.wait()  # each call has its deadline

    def close(self) -> None:
        """Ends calls under way with an error, on every rank."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
        self.settle(at_once=True)
        self._calls.put(None)
        self._thread.join()
        self.comm.close()


_sides: weakref.WeakSet[Side] = weakref.WeakSet()


def _make_all(calls: _Calls) -> None:
    while (issued := calls.get()) is not None:
        work, call = issued
        work._make(call)
        del issued, work, call  # what they hold must not live until the next one


def _end_all() -> None:
    """At the end of the process: what was issued still ends well, but where an error ends the process."""
    for side in list(_sides):
        side.settle(at_once=ended_by_error())


def side_of(comm: Communicator, timeout: float | None) -> Side:
    """That of a communicator: made by the first call, for which all ranks must come, and closed with it.

    Args:
        comm: whose calls it makes.
        timeout: seconds that the first call waits for the others; None: the communicator's.

    Returns:
        The side.

    Raises:
        Error: as `Communicator.split`.
    """
    with turn(comm):  # another thread's call may be the first, too
        if comm._side is None or comm.closed:  # then split says so
            group = comm.split(0, timeout=timeout)
            assert group
            comm._side = Side(group)
        return comm._side
