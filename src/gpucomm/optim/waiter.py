"""A thread that ends calls in their order, for futures, whose callbacks run where they are completed."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpucomm.ending import ended_by_error

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["Waiter"]

_Tasks = queue.SimpleQueue[Callable[[], None] | None]


class Waiter:
    """Never the thread that moves messages; one is enough, as calls end in their order.

    Args:
        comm: whose calls they are.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._pid = comm, os.getpid()
        self._tasks: _Tasks = queue.SimpleQueue()
        # A daemon: others are joined at exit before any handler could end what they wait for.
        self._thread = threading.Thread(
            target=_do_all, args=(self._tasks,), name="gpucomm-waiter", daemon=True
        )
        self._thread.start()
        self._ended = threading.Event()  # of the last task
        self._ended.set()
        weakref.finalize(self, self._tasks.put, None).atexit = False
        _waiters.add(self)
        atexit.unregister(_end_all)  # the last to be registered runs first: before what closes communicators
        atexit.register(_end_all)

    def submit(self, task: Callable[[], None]) -> None:
        """Has a task done behind those before."""
        ended = self._ended = threading.Event()

        def do() -> None:
            try:
                task()
            finally:
                ended.set()

        self._tasks.put(do)

    def settle(self, at_once: bool) -> None:
        """Waits for calls under way; `at_once`: ends them with an error, on every rank."""
        if self._ended.is_set() or os.getpid() != self._pid:
            return
        if at_once:
            self._comm.abort()
        self._ended.wait()  # each call has its deadline


_waiters: weakref.WeakSet[Waiter] = weakref.WeakSet()


def _do_all(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # what it holds must not live until the next one


def _end_all() -> None:
    """At the end of the process, which waiting threads would not survive."""
    for waiter in list(_waiters):
        waiter.settle(at_once=ended_by_error())
