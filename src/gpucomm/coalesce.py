"""Collectives on lists of arrays: small ones share messages, so that many cost little more than one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from gpucomm.comm import checked_timeout
from gpucomm.errors import Error, InvalidArgumentError, UnsupportedTypeError
from gpucomm.packs import Gathering, Message, Pack, Single, Staged
from gpucomm.turns import turn

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["CoalescedWork", "run"]


class CoalescedWork:
    """The handle of an asynchronous collective on a list of arrays."""

    def __init__(self, result: Sequence[Any], messages: list[Message]) -> None:
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
        end = _end(timeout, self._messages[0].comm if self._messages else None)
        try:
            for message in self._messages:
                message.finish(end, host)
        except Error:
            for message in self._messages:
                message.give_up()
            raise
        return self._result

    @property
    def result(self) -> Any:
        """The list of a call that is done, with its results; raises its error."""
        if not self.done():
            raise InvalidArgumentError("the call is not done yet: wait() first")
        return self.wait()


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
    messages: list[Message] = []
    parts = comm.world if gathers else 1
    packs = comm._plan_packs(list(xs), outs, parts, reads, writes, how.get("op"), how.get("scale"))
    _check_likes(comm, xs, outs, gathers, packs)
    end = None if how["async_op"] or len(packs) < 2 else _end(how["timeout"], comm)
    with turn(comm) if len(packs) > 1 else nullcontext():
        for places, count, digest, device in packs:
            kind: type[Message] = Single
            if len(places) > 1:
                kind = Staged if device else Gathering if gathers else Pack
            into = None if outs is None else [outs[i] for i in places]
            made = kind(comm, [xs[i] for i in places], into, count, partial(_put, gathered, places))
            made.start(collective, digest, reads, writes, _within(how, end))
            messages.append(made)
    fresh = gathered if gathers else xs
    result = fresh if outs is None else out
    return CoalescedWork(result, messages) if how["async_op"] else result


def _end(timeout: float | None, comm: Communicator | None) -> float | None:
    """The clock where a time from now ends; None: there is none."""
    where = f" (rank {comm.rank} of {comm.world})" if comm else ""
    seconds = None if timeout is None else checked_timeout(timeout, where)
    return None if seconds is None else time.monotonic() + seconds


def _within(how: dict[str, Any], end: float | None) -> dict[str, Any]:
    """A blocking list's time is for all its messages together."""
    return how if end is None else {**how, "timeout": max(0.001, end - time.monotonic())}


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
            if packed and makes:
                _check_has(comm, xs[i], f"x[{i}]", "shape")


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
