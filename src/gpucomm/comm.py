"""The communicator: the C++ one with what reads better in Python."""

from __future__ import annotations

from types import TracebackType

from gpucomm import _core

__all__ = ["Communicator", "Work"]

Work = _core.Work


class Communicator(_core.Communicator):
    """The ranks of a job and their collectives; made by `gpucomm.init` or `gpucomm.local`.

    Calls run in the order of issue; every rank must issue the same ones. After a fault (a timeout, a lost or
    disagreeing rank) it is closed for good, on every rank.
    """

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<gpucomm.Communicator rank {self.rank} of {self.world}, transport {self.transport}{state}>"
