"""Asynchronous collectives of objects: several messages each, on a thread and a communicator of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gpucomm.comm import checked_timeout
from gpucomm.errors import CollectiveTimeoutError, InvalidArgumentError, UnavailableError
from gpucomm.turns import turn
from gpucomm.waiter import Waiter

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
        timeout = None if timeout is None else checked_timeout(timeout, self._side.waiter.where)
        if not self.done():
            self._side.waiter.check_not_forked()
        if not self._ended.wait(timeout):
            self._side.comm.abort()
            raise CollectiveTimeoutError(
                f"a collective of objects has not ended within {timeout:g} s: all asynchronous ones end"
                f"{self._side.waiter.where}"
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


class Side:
    """What makes such calls, in the order of their issue; as `side_of`."""

    def __init__(self, comm: Communicator, timeout: float | None) -> None:
        try:
            self.waiter = Waiter(comm)
        except UnavailableError as error:  # before a group that the others would go on in
            raise comm._refused("split", error) from None
        try:
            group = comm.split(0, timeout=timeout)
        except BaseException:
            self.waiter.close()
            raise
        assert group
        self.comm = self.waiter.comm = group

    def start(self, call: Callable[..., Any], *args: Any) -> ObjectWork:
        """Issues `call(comm, *args)`."""
        work = ObjectWork(self)
        self.waiter.submit(partial(work._make, partial(call, self.comm, *args)))
        return work

    def close(self) -> None:
        """Ends calls under way with an error, on every rank."""
        self.waiter.close()
        self.comm.close()


def side_of(comm: Communicator, timeout: float | None) -> Side:
    """That of a communicator: made by the first call, for which all ranks must come, and closed with it.

    Args:
        comm: whose calls it makes.
        timeout: seconds that the first call waits for the others; None: the communicator's.

    Returns:
        The side.

    Raises:
        UnavailableError: this rank has no thread for them; the others are told.
        Error: as `Communicator.split`.
    """
    with turn(comm):  # another thread's call may be the first, too
        if comm._side is None or comm.closed:  # then split says so
            comm._side = Side(comm, timeout)
        return comm._side
