"""The collectives that a process group has of its own, in torch.distributed's forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gpucomm.exchange.dense import averaging
from gpucomm.optim.agreement import telling
from gpucomm.optim.process_group.calls import is_async, keywords, reduction, root_of
from gpucomm.optim.process_group.gloo_work import GlooWork
from gpucomm.optim.process_group.issue import Calls, Issuing
from gpucomm.optim.process_group.packing import Copies, counts, joined, source, splits, spread, target
from gpucomm.optim.process_group.work import Done

__all__ = ["Collectives"]


class Collectives(Issuing):
    """Every method takes what torch.distributed and its C++ pass, and returns a Work.

    `opts` are that call's options; None: their defaults.
    """

    _choices: Mapping[str, Mapping[str, Any]]

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Reduces each tensor over all ranks, in place."""
        xs = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if any(x.layout != torch.strided for x in xs):
            self._check_gloo("a sparse all_reduce")
            return GlooWork(self._gloo.allreduce(xs, opts), "a sparse all_reduce", self._comm)
        copies: Copies = []
        calls: Calls = []
        for x in xs:
            sent = target(x, copies, keep=True)
            calls.append(((sent,), self._reducing("all_reduce", x, sent, opts)))
        return self._issue(self._comm.all_reduce, calls, opts, xs, copies)

    def allreduce_coalesced(self, tensors: Sequence[Any], opts: Any = None) -> Any:
        """Reduces each tensor over all ranks, in place; small ones share messages."""
        copies: Copies = []
        alike: dict[str, tuple[list[Any], dict[str, Any]]] = {}
        for x in tensors:
            sent = target(x, copies, keep=True)
            how = self._reducing("all_reduce", x, sent, opts)
            alike.setdefault(repr(how), ([], how))[0].append(sent)
        calls: Calls = [((xs,), how) for xs, how in alike.values()]
        return self._issue(self._comm.all_reduce, calls, opts, tensors, copies)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """Copies the root's tensors to all ranks."""
        xs = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        root = root_of(opts)
        copies: Copies = []
        calls: Calls = []
        for x in xs:
            sent = target(x, copies, keep=True)
            calls.append(((sent, root), keywords(self._choices["broadcast"], sent, opts)))
        return self._issue(self._comm.broadcast, calls, opts, xs, copies)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Collects every rank's tensor in a list of tensors, whose sizes may differ."""
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        copies: Copies = []
        calls: Calls = []
        for outs, x in zip(outputs, inputs, strict=True):
            sent = source(x)
            how = keywords(self._choices["all_gather"], sent, opts)
            if any(out.numel() != x.numel() for out in outs):
                sizes = counts([out.numel() for out in outs], x, sent)
                sent, how["counts"] = sent.reshape(-1), sizes
            calls.append(((sent,), how | {"out": spread(outs, copies)}))
        return self._issue(self._comm.all_gather, calls, opts, outputs, copies)

    def allgather_coalesced(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Any:
        """Collects every rank's tensors, in a list of them for each rank."""
        return self.allgather([list(outs) for outs in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single(self, output: Any, given: Any, opts: Any = None) -> Any:
        """Collects every rank's tensor in one."""
        return self.all_gather_single_coalesced([output], [given], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> Any:
        """Collects every rank's tensors, those in each place in one."""

        def how(_: Any, sent: Any) -> dict[str, Any]:
            return keywords(self._choices["all_gather"], sent, opts)

        return self._each(self._comm.all_gather, outputs, inputs, how, opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduces a list of a tensor for each rank, whose sizes may differ, and leaves each its own."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        copies: Copies = []
        calls: Calls = []
        for out, xs in zip(outputs, inputs, strict=True):
            sent, into = joined(xs), target(out, copies)
            how = self._reducing("reduce_scatter", out, sent, opts)
            if any(x.numel() != out.numel() for x in xs):
                sizes = counts([x.numel() for x in xs], out, sent)
                sent, how["counts"] = sent.reshape(-1), sizes
            calls.append(((sent,), how | {"out": into}))
        return self._issue(self._comm.reduce_scatter, calls, opts, outputs, copies)

    def reduce_scatter_single(self, output: Any, given: Any, opts: Any = None) -> Any:
        """Reduces a tensor and leaves each rank its part."""
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> Any:
        """Reduces each tensor and leaves each rank its parts."""

        def how(x: Any, sent: Any) -> dict[str, Any]:
            return self._reducing("reduce_scatter", x, sent, opts)

        return self._each(self._comm.reduce_scatter, outputs, inputs, how, opts)

    def _each(
        self,
        call: Callable[..., Any],
        outputs: Sequence[Any],
        inputs: Sequence[Any],
        how: Callable[[Any, Any], dict[str, Any]],
        opts: Any,
    ) -> Any:
        copies: Copies = []
        calls: Calls = []
        for out, x in zip(outputs, inputs, strict=True):
            sent, into = source(x), target(out, copies)
            calls.append(((sent,), how(x, sent) | {"out": into}))
        return self._issue(call, calls, opts, outputs, copies)

    def all_to_all_single(
        self,
        output: Any,
        given: Any,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> Any:
        """Sends a part of the tensor to each rank and receives one from each; no splits: equal parts."""
        copies: Copies = []
        world = self._comm.world
        with telling(self._comm, "all_to_all"):
            shares = splits(given, input_splits, world), splits(output, output_splits, world)
        sent, into = source(given), target(output, copies)
        how = {"counts": counts(shares[0], given, sent), "out_counts": counts(shares[1], output, into)}
        return self._exchange(sent, into, how, opts, [output], copies)

    def alltoall(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Any:
        """Sends each rank a tensor and receives one from each."""
        copies: Copies = []
        sent, into = joined(inputs), spread(outputs, copies)
        how = {
            "counts": counts([x.numel() for x in inputs], inputs[0], sent),
            "out_counts": counts([out.numel() for out in outputs], outputs[0], into),
        }
        return self._exchange(sent, into, how, opts, outputs, copies)

    def barrier(self, opts: Any = None) -> Any:
        """Ends when every rank has called it."""
        how = {"timeout": self._patience_s()} | keywords({}, None, opts)
        if not is_async(opts):
            with self._order.lock:
                self._number("barrier")
            self._comm.barrier(**how)
            return Done(None)
        with self._order.lock:
            number = self._number("barrier")
            pending = self._comm.barrier(async_op=True, **how)
        return self._under_way(number, [pending], None)

    def _exchange(
        self, sent: Any, into: Any, sizes: dict[str, Any], opts: Any, result: Any, copies: Copies
    ) -> Done:
        """An all_to_all; sizes always, since a rank cannot know whether the others' parts are equal."""
        how = keywords(self._choices["all_to_all"], sent, opts) | sizes | {"out": into.reshape(-1)}
        return self._issue(self._comm.all_to_all, [((sent.reshape(-1),), how)], opts, result, copies)

    def _reducing(self, collective: str, x: Any, sent: Any, opts: Any) -> dict[str, Any]:
        with telling(self._comm, collective):
            reduced = reduction(opts, x)
        how = reduced | keywords(self._choices.get(collective, {}), sent, opts, reduced["op"])
        # As NCCL does: sums of float16 are infinite where their mean need not be.
        return how | averaging(sent, self._comm.world) if reduced["op"] == "mean" else how

    # Names before torch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
