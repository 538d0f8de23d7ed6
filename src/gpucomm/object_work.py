"""Asynchronous collectives of objects: several messages each, on a thread and a communicator of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from typing import TYPE_CHECKING, Any

from gpucomm.comm import seconds_to_wait
from gpucomm.errors import CollectiveTimeoutError, InvalidArgumentError

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["ObjectWork", "Side", "side_of"]


class ObjectWork:
    """The handle of an asynchronous collective of objects."""

    def __init__(self, comm: Communicator, future: futures.Future[Any]) -> None:
        self._comm, self._future = comm, future

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for the end and returns what the blocking call returns; as `Work.wait`.

        Args:
            timeout: seconds from now; once they have passed, all asynchronous collectives of objects fail.

        Returns:
            The object, or the list of objects.

        Raises:
            InvalidArgumentError: timeout is not positive and finite; the call goes on.
            Error: as the blocking call.
        """
        timeout = seconds_to_wait(timeout, f" (rank {self._comm.rank} of {self._comm.world})")
        futures.wait([self._future], timeout)
        if not self._future.done():
            self._comm.abort()
            raise CollectiveTimeoutError(
                f"a collective of objects has not ended within {timeout:g} s: all asynchronous ones end "
                f"(rank {self._comm.rank} of {self._comm.world})"
            )
        return self._future.result()

    synchronize = wait

    def done(self) -> bool:
        """Whether the call has ended, well or not."""
        return self._future.done()

    @property
    def result(self) -> Any:
        """What a call that is done returns; raises its error."""
        if not self.done():
            raise InvalidArgumentError("the call is not done yet: wait() first")
        return self._future.result()


class Side:
    """What makes such calls, in the order of their issue."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="gpucomm-objects")
        self._last: futures.Future[Any] | None = None

    def start(self, call: Callable[..., Any], *args: Any) -> ObjectWork:
        """Issues `call(comm, *args)`."""
        self._last = self._thread.submit(call, self._comm, *args)
        return ObjectWork(self._comm, self._last)

    def close(self) -> None:
        """Ends calls under way with an error, on every rank."""
        if self._last and not self._last.done():
            self._comm.abort()
        self._thread.shutdown()
        self._comm.close()


def side_of(comm: Communicator) -> Side:
    """That of a communicator: made by the first call, for which all ranks must come, and closed with it."""
    if comm._side is None or comm.closed:  # then split says so
        group = comm.split(0)
        assert group
        comm._side = Side(group)
    return comm._side
