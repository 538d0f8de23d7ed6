"""A communicator whose links take no time: what is left of a step is not communication."""

from __future__ import annotations

from typing import Any

from gpucomm.comm import Communicator

__all__ = ["Idle"]

_LONG = 64  # elements; short messages are sent, for they are agreements


class _Done:
    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> None:
        return None


class Idle:
    """Gives each rank as much as it would get, all of it its own.

    Args:
        comm: sends the short messages.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def all_gather(self, x: Any, *, out: Any = None, async_op: bool = False, **how: Any) -> Any:
        """Copies x into every part of out, as a receiver would."""
        if out is None or len(out) < _LONG:
            return self._comm.all_gather(x, out=out, async_op=async_op, **how)
        out.view(self.world, -1)[:] = x.clone()  # x may be a part of out
        return _Done() if async_op else out

    def reduce_scatter(self, x: Any, op: str = "sum", *, out: Any = None, **how: Any) -> Any:
        """Copies this rank's part of x."""
        if out is None or len(x) < _LONG:
            return self._comm.reduce_scatter(x, op, out=out, **how)
        return out.copy_(x.view(self.world, -1)[self.rank])
