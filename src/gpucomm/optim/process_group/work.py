"""The handle of a collective, as torch.distributed wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gpucomm.errors import Error
from gpucomm.optim.process_group.futures import future_of, leaves, pool
from gpucomm.optim.streams import Beside, used_here

__all__ = ["Done", "Together", "Work", "place"]

Copies = Sequence[tuple[Any, Any]]  # (to, from)
Callbacks = Callable[[], AbstractContextManager[None]]
_SMALL_BYTES = 64


def place(copies: Copies) -> None:
    """Puts results in place.

    Args:
        copies: pairs of tensors; each first one gets what the second one holds.
    """
    if copies:
        with torch.no_grad():
            for to, origin in copies:
                to.copy_(origin)
                used_here(origin)


class Done(dist.Work):  # type: ignore[misc]
    """A collective that has ended well."""

    def __init__(self, result: Any) -> None:
        """Takes the tensors of the call, which `result()` and the future give."""
        super().__init__()
        self._result = result

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Returns True."""
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not; then the results are in place."""
        return True

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.exception() is None and self.is_completed()

    def exception(self) -> Exception | None:
        """Its error, if it has ended with one."""
        return None

    def result(self) -> Any:
        """The tensors of the call."""
        return self._result

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    block_current_stream = synchronize

    def get_future(self) -> Any:
        """A torch future of the tensors, completed on a thread of its own."""
        future = future_of(self._result)
        future.set_result(self._result)
        return future


class Work(Done):
    """A collective under way; on a GPU one whose streams are waited for, by streams."""

    def __init__(
        self,
        pending: Sequence[Any],
        result: Any,
        copies: Copies = (),
        beside: Beside | None = None,
        kept: MutableMapping[int, Work] | None = None,
        callbacks: Callbacks = nullcontext,
    ) -> None:
        """Takes over calls.

        Args:
            pending: the communicator's handles.
            result: the tensors of the call.
            copies: pairs of tensors; at the end each first one gets what the second one holds.
            beside: the streams of tensors on GPUs, on which the calls were issued.
            kept: where it is until it has ended; with a small result, longer.
            callbacks: within it those of the future run.
        """
        super().__init__(result)
        self._kept = kept
        if kept is not None:
            kept[id(self)] = self
        self._beside = beside or Beside()
        self._pending, self._copies = pending, copies
        self._error: Exception | None = None
        self._settled = False
        self._waiting, self._lock = threading.Lock(), threading.Lock()
        self._future: Any = None
        self._callbacks = callbacks

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the end; raises the call's error.

        For tensors on a GPU the current stream waits; the host only until all ranks have come.

        Args:
            timeout: until the call, and with it the group, fails on every rank; 0: the group's.

        Returns:
            True.

        Raises:
            Error: as the communicator's collective.
        """
        if not self._settled:
            seconds = timeout.total_seconds() if timeout else 0.0
            self._settle(seconds if seconds > 0 else None)
        if self._error is not None:
            raise self._error
        self._join()
        return True

    def _join(self) -> None:
        self._beside.join()

    def _settle(self, timeout_s: float | None) -> None:
        """Waits for the calls and puts the results in place; of several threads one does."""
        if not self._waiting.acquire(blocking=False):
            with suppress(Error):  # the other thread, whose timeout may be longer, keeps it
                self._wait(timeout_s)
            self._waiting.acquire()
        try:
            if not self._settled:
                self._finish(timeout_s)
        finally:
            self._waiting.release()

    def _wait(self, timeout_s: float | None) -> None:
        for call in self._pending:
            call.wait(timeout_s)

    def _finish(self, timeout_s: float | None) -> None:
        try:
            with self._beside.inside():
                self._wait(timeout_s)
                place(self._copies)
        except Exception as error:
            self._error = error
        self._pending = self._copies = ()
        self._settled = True
        if self._kept is not None and sum(x.nbytes for x in leaves(self._result)) > _SMALL_BYTES:
            self._kept.pop(id(self), None)

    def is_completed(self) -> bool:
        """See `Done`."""
        if not self._settled and all(call.done() for call in self._pending):
            self._settle(None)
        return self._settled and self._idle()

    def _idle(self) -> bool:
        return self._beside.idle()

    def exception(self) -> Exception | None:
        """See `Done`."""
        return self._error if self.is_completed() else None

    def get_future(self) -> Any:
        """See `Done`."""
        with self._lock:
            if self._future is None:
                # A child made by then() carries a real C++ error; set_exception would store it as a value.
                base = future_of(self._result)
                future = base.then(self._deliver)
                if self._settled:
                    base.set_result(None)
                else:
                    pool.submit(lambda: self._complete(base))
                self._future = future
            return self._future

    def _complete(self, base: Any) -> None:
        self._settle(None)
        with self._callbacks():
            base.set_result(None)

    def _deliver(self, _: Any) -> Any:
        if self._error is not None:
            raise self._error
        self._join()  # the stream of the callback, for which those of who waits will wait
        return self._result


class Together(Work):
    """Several handles as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        """Takes them over."""
        super().__init__([_Part(work) for work in works], [work.result() for work in works])
        self._works = works
        if works:
            self._callbacks = works[-1]._callbacks

    def _join(self) -> None:
        for work in self._works:
            work._join()

    def _idle(self) -> bool:
        return all(work._idle() for work in self._works)


class _Part:
    """A Work as the communicator's handles are."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.done = work.is_completed

    def wait(self, timeout_s: float | None) -> None:
        self._work.wait(timedelta(seconds=timeout_s or 0.0))
