"""The futures of collectives, and threads that complete them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gpucomm import threads

__all__ = ["future_of", "leaves", "pool"]


def future_of(result: Any) -> Any:
    """A future that makes streams wait for the tensors of a result, where these are on GPUs."""
    return torch.futures.Future(devices=sorted({x.device for x in leaves(result) if x.is_cuda}, key=str))


def leaves(result: Any) -> Iterator[Any]:
    """The tensors of a result: none, one, or lists of them."""
    if isinstance(result, torch.Tensor):
        yield result
    elif result is not None:
        for each in result:
            yield from leaves(each)


class _Pool:
    """Threads that complete futures, as many as wait at once.

    A future's callbacks run where it is completed, and may issue a collective and block on it: so there is
    always a thread left. They are daemons: a collective that never ends must not hold the process's end up.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._busy = 0

    def submit(self, task: Callable[[], None]) -> None:
        """Have a task done by a thread that has nothing else to do.

        Raises:
            UnavailableError: there is no such thread, and none to be had.
        """
        with self._lock:
            if self._busy >= self._threads:
                threads.start(self._serve, name="gpucomm-future", purpose="complete a future on")
                self._threads += 1
            self._busy += 1
        self._tasks.put(task)

    def drain(self, timeout_s: float) -> None:
        """Wait until no thread is at work, but not for ever."""
        deadline = time.monotonic() + timeout_s
        while self._busy and time.monotonic() < deadline:
            time.sleep(0.001)

    def _serve(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                task()
            except BaseException:
                with self._lock:
                    self._threads -= 1
                raise
            finally:
                with self._lock:
                    self._busy -= 1
                del task  # the tensors behind it


pool = _Pool()
