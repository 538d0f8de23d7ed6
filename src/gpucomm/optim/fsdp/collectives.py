"""The objects that FSDP2 calls in place of its own collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gpucomm import _core
from gpucomm import comm as communicators
from gpucomm.comm import Communicator
from gpucomm.errors import InvalidArgumentError
from gpucomm.exchange.dense import averaging
from gpucomm.optim.fsdp.groups import Group
from gpucomm.optim.fsdp.meter import Meter
from gpucomm.optim.fsdp.residual import Residual, add_residual
from gpucomm.optim.fsdp.rounds import Round
from gpucomm.optim.fsdp.route import Route, sums_can_be_coded
from gpucomm.optim.streams import current, follow

__all__ = ["AllGather", "Lane", "ReduceScatter", "Replicas"]


class Lane:
    """One collective of one communicator: who, how, and what it cost.

    Args:
        comm: the ranks.
        meter: of the communicator.
        route: codec and algorithm.
        number: of the model among those that label their messages on the communicator.
    """

    def __init__(self, comm: Communicator, meter: Meter, route: Route, number: int = 0) -> None:
        self.comm, self.meter, self.route, self.number = comm, meter, route, number
        self._calls: Counter[int] = Counter()

    def label(self, group: Group) -> _core.Label:
        """Says of the next call whose it is: what another group sends is a mismatch, of whatever size."""
        self._calls[group.place] += 1
        return _core.Label(self.number, self._calls[group.place] - 1, group.place)


class _Allocating:
    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        """Returns memory for a message; FSDP2 asks for it."""
        return torch.empty(*size, dtype=dtype, device=device)


class _Pending(dist.Work):  # type: ignore[misc]
    """What FSDP2 waits for before it copies the parameters out.

    FSDP2 issues an all-gather on a stream of its own, which `work` makes wait, and waits on that of forward.
    """

    def __init__(self, meter: Meter, work: communicators.Work, stream: Any = None) -> None:
        super().__init__()
        self._meter, self._work, self._stream = meter, work, stream

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._meter.settle(self._work)
        self._work.wait()  # its error too, where it has been settled before
        follow(self._stream)
        return True

    def is_completed(self) -> bool:
        return self._work.done()


class AllGather(_Allocating):
    """Gathers parameters while the caller goes on.

    Args:
        lane: how.
        group: the parameters.
        backward: hears here of forwards that no hook of a module tells; None: nothing does.
    """

    def __init__(self, lane: Lane, group: Group, backward: Round | None = None) -> None:
        self._lane, self._group, self._round = lane, group, backward

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> Any:
        """Starts an all-gather; FSDP2 waits for the Work, whatever async_op says."""
        lane = self._lane
        if self._round is not None:
            self._round.before_forward()
        # A group of several dtypes travels as bytes, which no codec may change.
        coded = lane.route.takes(input_tensor.dtype)
        how = lane.route.coded if coded else lane.route.dense

        def issue() -> Any:
            return lane.comm.all_gather(input_tensor, out=output_tensor, async_op=True, **how)

        with lane.label(self._group):
            work = lane.meter.start("all_gather", issue, coded=coded)
        return _Pending(lane.meter, work, current(output_tensor))


class ReduceScatter(_Allocating):
    """Reduces a group's gradients, with the residual of what earlier calls have lost.

    Args:
        lane: how.
        group: the parameters.
        residual: of this group; None: what is lost is lost.
        backward: of all groups, which settles their residuals; None without these.
        ends: whether nobody reduces the result further.
    """

    def __init__(
        self, lane: Lane, group: Group, residual: Residual | None, backward: Round | None, ends: bool = True
    ) -> None:
        self._lane, self._group, self.residual, self._round = lane, group, residual, backward
        self._ends = ends
        self._borrowed: Any = None  # the window of the last call, unless that left the residual alone
        self._unit = 1.0  # what one element of the last call's result counts for in the residual

    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Reduces and scatters; the result is there when it returns, as FSDP2 uses it at once.

        On a GPU it is there for what FSDP2's stream gets next; the host waits for the other ranks to come.
        """
        with self._lane.meter.blocking("reduce_scatter") as account, self._lane.label(self._group):
            how = {"op": self._begin(op, input_tensor), "out": output_tensor}
            way, coded, residual = self._choose(input_tensor)
            account["coded"] += coded
            if residual is None:
                self._lane.comm.reduce_scatter(input_tensor, **how, **way)
            else:
                self._send_all(input_tensor, residual, how | way, coded)
        self.look(output_tensor)

    def _begin(self, op: Any, x: Any) -> str:
        """Joins the round, and returns the name of what reduces."""
        name = _scaled(op, x)
        self._unit = float(self._lane.comm.world) if name == "mean" else 1.0
        self._borrowed = None
        if self.residual is not None and self._round is not None:  # there are both or neither
            self.residual.lay_out(self._group.travelling(x.numel()))
            self._round.join(self.residual)
        return name

    def _choose(self, x: Any) -> tuple[dict[str, Any], bool, Residual | None]:
        """How x travels, whether that is coded, and the residual that goes with it, if one does."""
        route, residual = self._lane.route, self.residual
        coded = route.takes(x.dtype)
        if coded and (settled := self._settled(x)) is not None:
            return settled, False, residual if residual is not None and residual.owes else None
        asks = residual is not None or (coded and route.limited)
        if asks and not sums_can_be_coded(self._lane.comm, x, route):
            return route.dense, False, None
        return route.coded if coded else route.dense, coded, residual

    def _settled(self, x: Any) -> dict[str, Any] | None:
        """How "auto" has settled to send x as it is, if it has: then what coding needs can be spared.

        The same on all ranks, which have made the same calls; so it may not depend on what a rank owes.
        """
        feeds = self.residual is not None
        exact = not feeds or x.dtype == torch.float32  # a sum with the residual loses nothing
        if not (self._ends and exact and self._lane.route.chooses):
            return None
        found = self._lane.comm._settled_without_codec(x, self._lane.route.spec, feeds)
        return None if found is None else dict(zip(("algorithm", "segments"), found, strict=True))

    def look(self, result: Any) -> None:
        """Sees a result: what is lost of one that is not finite is not owed."""
        if self._round is not None:
            self._round.look(result)

    def _send_all(self, x: Any, residual: Residual, how: Mapping[str, Any], coded: bool) -> None:
        owed, lost = residual.turn()
        add_residual(x, owed, lost)
        if coded and x.dtype == lost.dtype:
            self._lane.comm.reduce_scatter(x, error=lost, **how)
        elif coded:
            also = torch.empty_like(x)
            self._lane.comm.reduce_scatter(x, error=also, **how)
            lost += also
        else:
            self._lane.comm.reduce_scatter(x, **how)
            if x.dtype == lost.dtype:
                residual.clear()
        self._borrowed = lost
        residual.clear_padding()

    def lost_later(self, error: Any) -> None:
        """Takes what was lost of this rank's part of the last result, on its further way.

        Args:
            error: a tensor like the result.
        """
        if self._borrowed is not None and self.residual is not None:  # there are both or neither
            rank, world = self._lane.comm.rank, self._lane.comm.world
            self._borrowed.view(world, -1)[rank].add_(error, alpha=self._unit)
            self.residual.clear_padding()


class Replicas:
    """The all-reduce hook: the reduced shards of several sharded copies of the model become one.

    Args:
        lane: over the ranks that hold the same shard.
        group: the parameters.
        scatter: of the same group, which keeps what is lost here too.
    """

    def __init__(self, lane: Lane, group: Group, scatter: ReduceScatter) -> None:
        self._lane, self._group, self._scatter = lane, group, scatter

    def __call__(self, shard: Any) -> None:
        """All-reduces in place."""
        comm, route = self._lane.comm, self._lane.route
        feeding = route.lossy and self._scatter.residual is not None
        op = "mean" if self._group.divides_by_all else "sum"
        with self._lane.meter.blocking("all_reduce") as account, self._lane.label(self._group):
            coded = route.takes(shard.dtype)
            if coded and (feeding or route.limited):
                coded = sums_can_be_coded(comm, shard, route)
            account["coded"] += coded
            if coded and feeding:
                lost = torch.empty_like(shard)
                comm.all_reduce(shard, op, error=lost, **route.coded)
                self._scatter.lost_later(lost)
            elif coded:
                comm.all_reduce(shard, op, **route.coded)
            else:
                how = averaging(shard, comm.world) if op == "mean" else {"op": op}
                comm.all_reduce(shard, **how, **route.dense)
        self._scatter.look(shard)


def _scaled(op: Any, x: Any) -> str:
    """Returns gpucomm's name of a torch op; one that scales is a sum of what it leaves in x."""
    if op == dist.ReduceOp.AVG:
        return "mean"
    if op == dist.ReduceOp.PREMUL_SUM:
        x.mul_(op.__getstate__()[1])
    elif op != dist.ReduceOp.SUM:
        raise InvalidArgumentError(f"[fsdp] gradients are reduced by AVG, SUM or PREMUL_SUM, got {op}")
    return "sum"
