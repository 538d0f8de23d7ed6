"""The collectives of a process group that have a root: reduce, gather and scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gpucomm.errors import InvalidArgumentError
from gpucomm.optim.agreement import telling
from gpucomm.optim.process_group.calls import keywords, root_of
from gpucomm.optim.process_group.collectives import Collectives
from gpucomm.optim.process_group.gloo_work import GlooWork
from gpucomm.optim.process_group.issue import Calls
from gpucomm.optim.process_group.packing import Copies, joined, source, spread, target

__all__ = ["Rooted"]


class Rooted(Collectives):
    """Every method is as those of `Collectives`; ranks are the group's."""

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None) -> Any:
        """Reduces each tensor over all ranks onto the root's; the others' stay as they are."""
        xs = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if any(x.layout != torch.strided for x in xs):
            self._check_gloo("a sparse reduce")
            return GlooWork(self._gloo.reduce(xs, opts), "a sparse reduce", self._comm)
        root, how = root_of(opts), op if isinstance(opts, int) else opts
        copies: Copies = []
        calls: Calls = []
        for x in xs:
            sent = target(x, copies, keep=True) if root == self._comm.rank else source(x)
            calls.append(((sent, root), self._reducing("reduce", x, sent, how)))
        return self._issue(self._comm.reduce, calls, opts, xs, copies)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Collects every rank's tensor in a list of the root's, of tensors of one size."""
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        x = inputs[0]
        root, sent = root_of(opts), source(x).reshape(-1)
        how: dict[str, Any] = keywords({}, sent, opts)
        copies: Copies = []
        if root == self._comm.rank:
            self._check("gather", outputs[0], x)
            how["out"] = spread(outputs[0], copies).reshape(-1)
        return self._issue(self._comm.gather, [((sent, root), how)], opts, outputs, copies)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Gives each rank its tensor of a list of the root's, of tensors of one size."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        out = outputs[0]
        root, sent = root_of(opts), None
        copies: Copies = []
        if root == self._comm.rank:
            self._check("scatter", inputs[0], out)
            sent = joined(inputs[0]).reshape(-1)
        into = target(out, copies).reshape(-1)
        how = keywords({}, into, opts) | {"out": into}
        return self._issue(self._comm.scatter, [((sent, root), how)], opts, outputs, copies)

    def _check(self, call: str, listed: Sequence[Any], x: Any) -> None:
        """Refuses a list that is not of one tensor like x for each rank: the others know of no other size."""
        sizes, world = [one.numel() for one in listed], self._comm.world
        with telling(self._comm, call):
            if sizes != [x.numel()] * world or any(one.dtype != x.dtype for one in listed):
                raise InvalidArgumentError(
                    f"{call} takes a list of {world} tensors of {x.numel()} {x.dtype} elements, as the rank's"
                    f" own has, got {', '.join(f'{one.numel()} {one.dtype}' for one in listed) or 'none'}"
                )
