"""A bucket: the gradients of several parameters in one flat buffer, which travels as one message."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from gpucomm.errors import InvalidArgumentError, UnavailableError, UnsupportedTypeError
from gpucomm.exchange import Handle, Part
from gpucomm.memory import empty
from gpucomm.optim.members import Member

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["Bucket"]


def _zeros(count: int, like: Any, comm: Communicator) -> tuple[Any, bool]:
    """Returns a buffer, and whether all ranks of the node can read it where it lies."""
    if comm.heap["size_bytes"] and like.device.type == "cpu":
        try:
            return empty(count, like.dtype, comm=comm, like="torch").zero_(), True
        except UnavailableError:
            pass  # the heap is full: the results are the same
    return torch.zeros(count, dtype=like.dtype, device=like.device), False


class Bucket:
    """Gradients that travel together, and how far they have come in the running backward.

    Behind the gradients lies one mark per parameter: 1 where this rank has a gradient. Their mean tells every
    rank which parameters no rank has used, so that these keep no gradient, as they would with one process.

    Args:
        members: the parameters, all of one dtype and device.
        comm: the ranks; where these share a heap, the buffer lies in it, else in private memory.

    Attributes:
        shared: whether the buffer lies in the shared heap.
    """

    def __init__(self, members: Sequence[Member], comm: Communicator) -> None:
        self.members = list(members)
        counts = [param.numel() for _, param in members]
        ends = list(accumulate(counts))
        first = members[0].param
        self.buffer, self.shared = _zeros(ends[-1] + len(counts), first, comm)
        self.parts = [
            Part(member.name, end - count, count)
            for member, end, count in zip(members, ends, counts, strict=True)
        ]
        # Those of the parameters where they leave no gap (channels last).
        self._strides = [_strides_of_gradient(param) for _, param in members]
        self._as_wrapped = [_looks(param) for _, param in members]
        self._views = [self._new_view(slot) for slot in range(len(members))]
        self._places = [view.data_ptr() for view in self._views]
        self._marks = self.buffer[ends[-1] :]
        self.reset()

    def reset(self) -> None:
        """Forgets the round: nothing is there, nothing is under way."""
        self.work: Handle | None = None
        self._used: list[bool | None] = [None] * len(self.members)
        self._awaited = len(self.members)

    @property
    def complete(self) -> bool:
        """Whether every parameter has been dealt with in this round."""
        return self._awaited == 0

    def _view(self, slot: int) -> Any:
        """Returns a parameter's part of the buffer.

        As a gradient it was the user's, and may have got other memory: by `grad.data = ...`, or as the model
        was converted, for the time being or for good.
        """
        if self._views[slot].data_ptr() != self._places[slot]:
            self._views[slot] = self._new_view(slot)
        return self._views[slot]

    def _new_view(self, slot: int) -> Any:
        shape = self.members[slot].param.shape
        return self.buffer.as_strided(shape, self._strides[slot], self.parts[slot].offset)

    def take(self, slot: int) -> None:
        """Copies a gradient into the buffer and makes it a view of that; zeros where there is none.

        Raises:
            InvalidArgumentError: the bucket has been sent already, the gradient carries a graph, or the
                parameter has another dtype, device, shape or memory format than when it was wrapped.
            UnsupportedTypeError: the gradient is sparse.
        """
        name, param = self.members[slot]
        if self.work is not None:
            raise InvalidArgumentError(
                f"[optim] parameter {name!r} got a gradient after its bucket had been sent: an earlier "
                "backward() ended in an exception (then call zero_grad() of this optimizer first), or "
                "reentrant checkpointing visits it twice (then use checkpoint(..., use_reentrant=False))"
            )
        grad, view = param.grad, self._view(slot)
        if grad is None:  # not reached, or a hook of the user's has taken it
            view.zero_()
            self._settle(slot, used=False)
            return
        if grad is not view:
            _require_plain(name, grad)
            if _looks(param) != self._as_wrapped[slot]:
                self._require_as_wrapped(slot)
            view.copy_(grad)
            param.grad = view
        self._settle(slot, used=True)

    def _require_as_wrapped(self, slot: int) -> None:
        """Strides too: a fused optimizer goes through parameter and gradient as they lie in memory."""
        name, param = self.members[slot]
        dtype, device, shape, strides = self._as_wrapped[slot]
        if (param.dtype, param.device) != (dtype, device):
            now, then = f"{param.dtype} on {param.device}", f"{dtype} on {device}"
        elif param.shape != shape:
            now, then = f"of shape {tuple(param.shape)}", f"of shape {tuple(shape)}"
        elif _strides_of_gradient(param) != self._strides[slot]:
            now, then = f"of strides {param.stride()}", f"of strides {strides}"
        else:  # only dimensions of one element have others
            return
        raise InvalidArgumentError(
            f"[optim] parameter {name!r} is {now} by now, but was {then} when it was wrapped: wrap it anew"
        )

    def fill(self) -> None:
        """Deals with the parameters that this backward has not reached: what they hold, or zeros."""
        for slot, used in enumerate(self._used):
            if used is None:
                self.take(slot)

    def keep_apart(self, buffers: Collection[int]) -> None:
        """Copies gradients that lie where those of others will be written, as where they were swapped.

        Args:
            buffers: where the storages of all buckets' buffers begin.
        """
        for slot, (_, param) in enumerate(self.members):
            grad = param.grad
            if grad is None or grad.layout is not torch.strided:
                continue
            at_home = grad is self._views[slot] and grad.data_ptr() == self._places[slot]
            if not at_home and grad.untyped_storage().data_ptr() in buffers:
                param.grad = grad.clone()

    def mark(self) -> None:
        """Writes the marks, just before the bucket is sent."""
        if all(self._used):
            self._marks.fill_(1)
        else:
            self._marks.copy_(torch.tensor(self._used, dtype=self._marks.dtype))

    def settle_unused(self) -> None:
        """Gives a gradient to parameters that other ranks have used; to be called once the mean is there."""
        if all(self._used):
            return
        for slot, share in enumerate(self._marks.tolist()):
            if share > 0 and not self._used[slot]:
                self.members[slot].param.grad = self._view(slot)

    def _settle(self, slot: int, *, used: bool) -> None:
        if self._used[slot] is None:
            self._awaited -= 1
        self._used[slot] = used


def _looks(param: Any) -> tuple[Any, ...]:
    """What must stay as it was at wrapping."""
    return param.dtype, param.device, param.shape, param.stride()


def _strides_of_gradient(param: Any) -> tuple[int, ...]:
    """Those that autograd gives it."""
    strides: tuple[int, ...] = torch.empty_like(param, device="meta").stride()
    return strides


def _require_plain(name: str, grad: Any) -> None:
    if grad.layout is not torch.strided:
        raise UnsupportedTypeError(
            f"[optim] the gradient of parameter {name!r} is {grad.layout}, but only dense gradients are "
            "exchanged; build its layer with sparse=False"
        )
    if grad.requires_grad:
        raise InvalidArgumentError(
            f"[optim] the gradient of parameter {name!r} carries a graph, which an exchange would cut; "
            "use torch.autograd.grad(..., create_graph=True) in place of backward(create_graph=True)"
        )
