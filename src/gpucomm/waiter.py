"""A thread that ends a communicator's calls beside the program, one after another."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpucomm import threads
from gpucomm.ending import ended_by_error
from gpucomm.errors import ClosedError

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["Waiter"]

_Tasks = queue.SimpleQueue[Callable[[], None] | None]


class Waiter:
    """Does tasks in the order in which they come; never the thread that moves messages.

    Args:
        comm: whose calls the tasks end, each of which has its deadline.

    Raises:
        UnavailableError: there is no thread to be had.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.where = comm, f" (rank {comm.rank} of {comm.world})"
        self._pid, self._lock, self._closed = os.getpid(), threading.Lock(), False
        self._tasks: _Tasks = queue.SimpleQueue()
        self._thread = threads.start(
            _do_all, self._tasks, name="gpucomm-waiter", purpose="end calls on", where=self.where
        )
        self._ended = threading.Event()  # of the last task
        self._ended.set()
        weakref.finalize(self, self._tasks.put, None).atexit = False
        _waiters.add(self)
        atexit.unregister(_end_all)  # the last to be registered runs first: before what closes communicators
        atexit.register(_end_all)

    def submit(self, task: Callable[[], None]) -> None:
        """Has a task done behind those before.

        Args:
            task: raises nothing.

        Raises:
            ClosedError: close() was called, or this process was forked from the one that has the thread.
        """
        self.check_not_forked()
        ended = threading.Event()

        def do() -> None:
            try:
                task()
            finally:
                ended.set()

        with self._lock:
            if self._closed:  # behind the end of its queue nothing is done
                raise ClosedError(f"this communicator is closed{self.where}")
            self._ended = ended
            self._tasks.put(do)

    def check_not_forked(self) -> None:
        """A child of fork has no such thread: nothing would ever end its tasks."""
        if os.getpid() != self._pid:
            raise ClosedError(
                "a communicator does not survive fork(): start ranks with gpucomm.local or gpucomm run"
                f"{self.where}"
            )

    def settle(self, at_once: bool) -> None:
        """Waits for what is under way; `at_once`: ends it with an error, on every rank."""
        if self._ended.is_set() or os.getpid() != self._pid:
            return
        if at_once:
            self.comm.abort()
        self._ended.wait()

    def close(self) -> None:
        """Ends what is under way with an error, on every rank, and the thread."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
        self.settle(at_once=True)
        self._tasks.put(None)
        self._thread.join()


_waiters: weakref.WeakSet[Waiter] = weakref.WeakSet()


def _do_all(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # what it holds must not live until the next one


def _end_all() -> None:
    """At the end of the process: what is under way still ends well, but where an error ends the process."""
    for waiter in list(_waiters):
        waiter.settle(at_once=ended_by_error())
