"""Closures of optimizers that evaluate the loss themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["with_global_loss"]


def _mean(loss: Any, comm: Communicator) -> Any:
    """Of a tensor a tensor as it is, of a number a float, which no default dtype rounds."""
    is_tensor = isinstance(loss, torch.Tensor)
    value = loss.detach() if is_tensor else torch.tensor(float(loss), dtype=torch.float64)
    flat = value.to(torch.float64, copy=True).reshape(-1)
    comm.all_reduce(flat, op="mean")
    return flat.to(value.dtype).reshape(value.shape) if is_tensor else flat.item()


def with_global_loss(
    closure: Callable[[], Any], comm: Communicator, check: Callable[[], None]
) -> Callable[[], Any]:
    """Makes a closure return the mean of all ranks' losses.

    LBFGS decides by the loss how often it calls the closure. With each rank's own loss the ranks would decide
    differently: one would stop while the others wait for its gradients.

    Args:
        closure: computes this rank's loss and its gradients.
        comm: the ranks.
        check: called after every evaluation, raises where its gradients are not global.

    Returns:
        The closure to hand on; a loss of None stays None.
    """

    def evaluate() -> Any:
        loss = closure()
        check()
        return loss if loss is None or comm.world == 1 else _mean(loss, comm)

    return evaluate
