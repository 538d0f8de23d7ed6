"""The communicator: the C++ one with what reads better in Python."""

from __future__ import annotations

import contextlib
import functools
import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from gpucomm import _core
from gpucomm.errors import Error, InvalidArgumentError, UnsupportedTypeError
from gpucomm.non_member import NonMember

if TYPE_CHECKING:
    from gpucomm.launch.claim import Claim
    from gpucomm.launch.fabric import Fabric
    from gpucomm.object_work import Side

__all__ = ["Communicator", "Work"]

Work = _core.Work
_Call = TypeVar("_Call", bound=Callable[..., Any])


def is_whole(number: Any) -> bool:
    """Whether it is a whole number of 64 bits, Python's or NumPy's."""
    import numpy as np

    whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
    return whole and -(2**63) <= number < 2**63


def checked_timeout(timeout: Any, where: str = "") -> float:
    """Returns a timeout, in seconds, as far as clocks count.

    Args:
        timeout: seconds.
        where: the rank, for the text.

    Raises:
        InvalidArgumentError: it is not positive and finite.
    """
    number = isinstance(timeout, numbers.Real) and not isinstance(timeout, bool)
    if not number or not 0 < timeout < math.inf:
        raise InvalidArgumentError(
            f"timeout must be a positive, finite number of seconds, got {_core.shown(timeout)}{where}"
        )
    return float(min(timeout, 1e9))


def _told(method: _Call) -> _Call:
    """Arguments that fit no signature, as a misspelt keyword, are told to the other ranks, who may wait."""

    @functools.wraps(method)
    def call(self: Communicator, *args: Any, **named: Any) -> Any:
        try:
            return method(self, *args, **named)
        except TypeError as error:
            if error.__traceback__ and error.__traceback__.tb_next:  # raised in the method
                raise
            said = str(error).encode(errors="backslashreplace").decode()
            raise self._refused(method.__name__, UnsupportedTypeError(said)) from None

    return call  # type: ignore[return-value]


class Communicator(_core.Communicator):
    """The ranks of a job and their collectives; made by `gpucomm.init` or `gpucomm.local`.

    Calls run in the order of issue; every rank must issue the same ones. After a fault (a timeout, a lost or
    disagreeing rank) it is closed for good, on every rank.
    """

    # The base has the attributes' dict. Of one more Python 3.11 would take it for two, which no cycle through
    # this survives: it would never be collected.
    __slots__ = ()

    _fabric: Fabric | None = None  # what connects its nodes; None: they share memory
    _wire_ranks: tuple[int, ...] = ()  # the fabric's number of each rank
    _side: Side | None = None  # what makes its asynchronous collectives of objects
    _claim: Claim | None = None  # of its job, on rank 0

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(*[Error] if error else []):  # the first one counts
            self.close()

    def close(self) -> None:
        """Ends this rank's part; calls under way fail on every rank. Again: nothing.

        Raises:
            MismatchError: the ranks have not made the same calls, and none was left that would have shown it:
                two roots of a short broadcast, say. It is closed all the same.
            InvalidArgumentError: a codec could not carry an element of a device's array, and no call was left
                that would have told it. The same.
        """
        try:
            if self._side:
                self._side.close()
        finally:
            if self._claim:
                self._claim.release()
            super().close()

    def _refused(self, call: str, error: Error) -> Error:
        """The error of a bad argument, with this rank; the others, who may wait in the call, are told."""
        text, place = str(error), f"rank {self.rank} of {self.world}"
        told = error if place in text else type(error)(f"{text} ({place})")
        self._refuse(call, str(told))
        return told

    @contextlib.contextmanager
    def _parts_of(self, call: str) -> Iterator[None]:
        """Collectives in the block belong to this one call, which the errors of other ranks then name."""
        self._set_part_of(call)
        try:
            yield
        finally:
            self._set_part_of("")

    @_told
    def split(
        self, color: int | None, key: int = 0, *, timeout: float | None = None
    ) -> Communicator | NonMember:
        """Divides the ranks into groups, each with a communicator of its own; every rank must call it.

        Args:
            color: ranks of one color form a group; a whole number from 0 up, or None to join none.
            key: orders the ranks of a group; equal keys keep this communicator's order.
            timeout: seconds for the others to come and to meet, of which meeting gets at least one; None: the
                communicator's.

        Returns:
            The group's communicator, with this one's timeout; for color None a `NonMember`, which is false
            and raises where it is used. A group owns its memory and may be used beside this one, but calls
            that wait for each other must be issued in one order.

        Raises:
            InvalidArgumentError: color or key is no such number.
            Error: as any collective.
        """
        from gpucomm.launch import groups

        return groups.split(self, color, key, timeout)

    @_told
    def subset(self, ranks: Sequence[int], *, timeout: float | None = None) -> Communicator | NonMember:
        """Makes a communicator of some ranks, in the order given; every rank must call it alike.

        Args:
            ranks: distinct ranks of this communicator, at least one.
            timeout: as in split.

        Returns:
            The group's communicator; on ranks that are not in it a `NonMember`, as of `split`.

        Raises:
            InvalidArgumentError: ranks repeat or are out of range.
            MismatchError: the ranks did not say the same; on all of them, and this communicator stays open.
            Error: as any collective.
        """
        from gpucomm.launch import groups

        return groups.subset(self, ranks, timeout)

    @_told
    def split_nodes(self, *, timeout: float | None = None) -> tuple[Communicator, Communicator]:
        """Makes two groups: the ranks of this rank's node, and the ranks in its place on every node.

        Every rank must call it. In the second group rank i is on the i-th node; nodes that have no rank in
        this place are not in it.

        Args:
            timeout: as in split.

        Returns:
            The communicator inside the node, and the one across nodes.

        Raises:
            Error: as any collective.
        """
        nodes = self.nodes
        place = nodes[: self.rank].count(nodes[self.rank])
        inside, across = (self.split(color, timeout=timeout) for color in (nodes[self.rank], place))
        assert inside and across
        return inside, across

    def shrink(self, timeout: float | None = None) -> Communicator:
        """Gives the survivors of a fault a new communicator; each of them must call it, once.

        A fault (a lost rank, a timeout, a mismatch, abort()) closes a communicator for good. All live ranks
        that come go on, in their old order. As soon as all have come, or the first of them has waited for
        `timeout`, they are settled; ranks that have ended are not waited for, stopped ones are.

        A rank that comes later than that gets a ClosedError which names those that have gone on without it:
        it should end. Where a rank ends or stops meanwhile, the others begin again without it. Where a
        signal's handler has raised meanwhile, it may be called again.

        Args:
            timeout: seconds for the others to come, and then again to meet; None: the communicator's.

        Returns:
            An open communicator of the survivors, with this one's timeout and emulated links; it is what
            `gpucomm.init()` returns from now on where it returned this one.

        Raises:
            ClosedError: this rank came too late, or has closed this communicator itself.
            PeerLostError: ranks went on ending, in each of eight attempts.
            InvalidArgumentError: there was no fault, or this communicator was shrunk before.
            UnavailableError: its ranks share no memory.
            Error: as `gpucomm.init`.
        """
        from gpucomm.launch import survivors

        return survivors.shrink(self, timeout)

    @_told
    def broadcast_object(
        self,
        obj: Any,
        root: int = 0,
        *,
        pickle: bool = False,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Gives every rank an object of the root's.

        Args:
            obj: on the root None, bool, int, float, complex, str, bytes, NumPy arrays and scalars, and lists,
                tuples and dicts of these, up to 100 deep; it arrives exactly so, NaN, tuples and the order of
                keys too. Elsewhere it is not looked at.
            root: the rank whose object it is.
            pickle: whether anything else is pickled, and what others pickled unpickled here, which lets them
                run any code; all ranks must say the same.
            timeout: seconds until the call fails on every rank; None: the communicator's.
            async_op: whether to return at once. Such calls run beside all others, in their own order, on a
                thread and a communicator of their own, which the first one waits for.

        Returns:
            The object; on the root obj itself. Of an asynchronous call an ObjectWork.

        Raises:
            UnsupportedTypeError: it holds something else, or what pickle does not take, on every rank; or
                this rank cannot unpickle it. The communicator stays open.
            UnavailableError: this rank has no memory for it.
            MismatchError: the ranks do not say the same root, on every rank. It stays open.
            InvalidArgumentError: root is no rank, on every rank. It stays open.
            Error: as any collective.
        """
        from gpucomm import object_collectives

        return object_collectives.broadcast_object(self, obj, root, pickle, timeout, async_op)

    @_told
    def gather_objects(
        self,
        obj: Any,
        root: int | None = None,
        *,
        pickle: bool = False,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Collects one object of every rank.

        Args:
            obj: this rank's, as in broadcast_object.
            root: the rank that gets them; None: all do.
            pickle: as in broadcast_object.
            timeout: as in broadcast_object.
            async_op: as in broadcast_object.

        Returns:
            A list of the objects in rank order; None on the ranks that do not get them. Of an asynchronous
            call an ObjectWork.

        Raises:
            InvalidArgumentError: root is no rank.
            UnsupportedTypeError, UnavailableError: as broadcast_object.
            Error: as any collective.
        """
        from gpucomm import object_collectives

        return object_collectives.gather_objects(self, obj, root, pickle, timeout, async_op)

    def __repr__(self) -> str:
        nodes = len(set(self.nodes))
        where = f", {nodes} nodes" if nodes > 1 else ""
        state = ", closed" if self.closed else ""
        rank = f"rank {self.rank} of {self.world}"
        return f"<gpucomm.Communicator {rank}, transport {self.transport}{where}{state}>"


_core.hasten(Communicator)
