"""One backward: the residuals of all groups are renewed by it, or of none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gpucomm.exchange.gradient_codec import magnitude
from gpucomm.optim.fsdp.residual import Residual
from gpucomm.optim.streams import current, follow

if TYPE_CHECKING:
    from gpucomm.optim.fsdp.collectives import Lane

__all__ = ["Round"]


class Round:
    """Settles the residuals of all groups together, at the end of every backward.

    A GradScaler skips a step in which any gradient of any rank is not finite. So after such a backward, and
    after one that has failed half-way, residuals are what they were before it.

    Args:
        lanes: by the kind of call; together they reach every rank.
    """

    def __init__(self, lanes: Sequence[tuple[str, Lane]]) -> None:
        self._lanes = lanes
        self._residuals: list[Residual] = []
        self._renewed: list[Residual] = []  # by the last backward
        self._seen: list[tuple[Any, Any]] = []  # whether a result is finite, and the stream that finds it out

    def join(self, residual: Residual) -> None:
        """Takes in a residual that is about to change; on all ranks alike, during backward."""
        if not self._residuals:
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
            self._renewed = []
        residual.keep()
        self._residuals.append(residual)

    def look(self, result: Any) -> None:
        """Sees a result of this rank; on a GPU in its stream's time: the host does not wait."""
        finite = result.isfinite().all() if result.is_cuda else math.isfinite(magnitude(result))
        self._seen.append((finite, current(result)))

    def before_forward(self) -> None:
        """Takes back what a failed backward has changed."""
        if torch._C._current_graph_task_id() == -1:  # else backward runs a checkpointed forward again
            self._settle(False)

    def _end(self) -> None:
        self._catch_up()
        finite = np.array([all(bool(one) for one, _ in self._seen)], np.uint8)
        for kind, lane in self._lanes:
            with lane.meter.blocking(kind, calls=0):
                lane.comm.all_reduce(finite, "min")
        self._settle(bool(finite[0]))

    def _catch_up(self) -> None:
        """Reductions have streams of FSDP2's own; the current one comes after what they have seen."""
        for _, stream in self._seen:
            follow(stream)

    def _settle(self, used: bool) -> None:
        self._catch_up()
        for residual in self._residuals:
            residual.settle(used)
        if self._residuals:
            self._renewed, self._residuals = self._residuals, []
        self._seen.clear()

    def discard(self) -> None:
        """Takes back what the last backward has changed: its gradients are thrown away."""
        for residual in self._renewed:
            residual.discard()
        self._renewed = []
