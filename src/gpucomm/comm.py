"""The communicator: the C++ one with what reads better in Python."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from gpucomm import _core

if TYPE_CHECKING:
    from gpucomm.launch.fabric import Fabric

__all__ = ["Communicator", "Work"]

Work = _core.Work


class Communicator(_core.Communicator):
    """The ranks of a job and their collectives; made by `gpucomm.init` or `gpucomm.local`.

    Calls run in the order of issue; every rank must issue the same ones. After a fault (a timeout, a lost or
    disagreeing rank) it is closed for good, on every rank.
    """

    _fabric: Fabric | None = None  # what connects its nodes; None: they share memory
    _wire_ranks: tuple[int, ...] = ()  # the fabric's number of each rank

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Divides the ranks into groups, each with a communicator of its own; every rank must call it.

        Args:
            color: ranks of one color form a group; a whole number from 0 up, or None to join none.
            key: orders the ranks of a group; equal keys keep this communicator's order.

        Returns:
            The group's communicator, with this one's timeout, or None for color None. It owns its memory and
            may be used beside this one, but calls that wait for each other must be issued in one order.

        Raises:
            InvalidArgumentError: color or key is no such number.
            Error: as any collective.
        """
        from gpucomm.launch import groups

        return groups.split(self, color, key)

    def subset(self, ranks: Sequence[int]) -> Communicator | None:
        """Makes a communicator of some ranks, in the order given; every rank must call it alike.

        Args:
            ranks: distinct ranks of this communicator, at least one.

        Returns:
            The group's communicator, or None on ranks that are not in it.

        Raises:
            InvalidArgumentError: ranks repeat or are out of range.
            Error: as any collective.
        """
        from gpucomm.launch import groups

        return groups.subset(self, ranks)

    def split_nodes(self) -> tuple[Communicator, Communicator]:
        """Makes two groups: the ranks of this rank's node, and the ranks in its place on every node.

        Every rank must call it. In the second group rank i is on the i-th node; nodes that have no rank in
        this place are not in it.

        Returns:
            The communicator inside the node, and the one across nodes.

        Raises:
            Error: as any collective.
        """
        nodes = self.nodes
        place = nodes[: self.rank].count(nodes[self.rank])
        inside, across = self.split(nodes[self.rank]), self.split(place)
        assert inside is not None and across is not None
        return inside, across

    def __repr__(self) -> str:
        nodes = len(set(self.nodes))
        where = f", {nodes} nodes" if nodes > 1 else ""
        state = ", closed" if self.closed else ""
        rank = f"rank {self.rank} of {self.world}"
        return f"<gpucomm.Communicator {rank}, transport {self.transport}{where}{state}>"
