"""dense: every element of the bucket is averaged over the ranks, by one all-reduce.

Exact up to rounding; no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucomm.exchange.base import Exchange, Handle, Part, register

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["Dense", "averaging"]


def averaging(buffer: Any, world: int) -> dict[str, Any]:
    """Returns `op` and `scale` for a mean that is finite where the elements are.

    Args:
        buffer: of torch or NumPy. Partial sums of float16 may be infinite: they are divided first.
        world: the number of ranks.
    """
    if str(buffer.dtype).rpartition(".")[2] == "float16":
        return {"op": "premul_sum", "scale": 1 / world}
    return {"op": "mean"}


@register
class Dense(Exchange):
    """An all-reduce per bucket.

    Args:
        comm: the ranks.
        algorithm: passed to `all_reduce`.
        segments: passed to `all_reduce`.

    Raises:
        InvalidArgumentError: the communicator does not know the algorithm, or it takes no such segment count.
    """

    name = "dense"

    def __init__(self, comm: Communicator, *, algorithm: str = "auto", segments: int | None = None) -> None:
        self._comm = comm
        self._algorithm = algorithm
        self._segments = segments
        # A bad algorithm is told now, by one tiny call, and not from the depth of the first backward().
        comm.all_reduce(np.zeros(1, np.float32), op="mean", algorithm=algorithm, segments=segments)

    def start(self, buffer: Any, parts: Sequence[Part]) -> Handle:
        """Issues the all-reduce; see :meth:`Exchange.start`."""
        work: Handle = self._comm.all_reduce(
            buffer,
            algorithm=self._algorithm,
            segments=self._segments,
            async_op=True,
            **averaging(buffer, self._comm.world),
        )
        return work
