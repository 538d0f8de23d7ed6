"""LayerwiseBSP: one rank updates; weights go out under the forward pass, gradients come in under backward."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gpucomm import _core
from gpucomm.comm import is_whole
from gpucomm.cost import MOST_SEGMENTS
from gpucomm.errors import InvalidArgumentError
from gpucomm.exchange import Exchange, Handle, Part
from gpucomm.exchange.dense import averaging
from gpucomm.optim.agreement import require_same_layout, telling
from gpucomm.optim.frozen import Frozen
from gpucomm.optim.members import Member, find_buffers, find_members, plan_buckets
from gpucomm.optim.owners import claim, claimable, trained
from gpucomm.optim.reducer import Reducer
from gpucomm.optim.replicate import broadcast_tensors, require_plain
from gpucomm.optim.weights import WeightFlow, find_layers
from gpucomm.optim.wrapped import WrappedOptimizer, require_arguments

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["LayerwiseBSP"]


class LayerwiseBSP(WrappedOptimizer):
    """Bulk-synchronous SGD with a root: each layer's gradients and weights travel while others compute.

    backward() reduces each layer's gradients to the root as soon as they are made. The root alone steps.
    step() then sends the new weights, layer by layer, and returns; in the next forward pass each layer waits
    for its own. Source: Linear Pipelining, arXiv:1611.04255, whose reduce and broadcast cost hardly more with
    more ranks. Parameters and buffers are taken from the root here, once. Every rank must run the same
    backward passes. A module's parameters must be read in its own forward, or not at all between step() and
    the next forward; `model.state_dict()` and `load_state_dict()` wait for them.

    Args:
        optimizer: any torch optimizer; only the root's steps, so only the root has its state.
        model: whose parameters it trains.
        comm: the ranks.
        root: the rank that updates.
        algorithm: of both collectives; ``"auto"`` to choose each by cost.
        segments: into how many pieces a message is cut, None to choose.

    Raises:
        InvalidArgumentError: not a torch optimizer or model, an unknown algorithm or one without reduce or
            broadcast, or a root that is not a rank. Also of a forward pass before the first step in which
            DistributedDataParallel has the model by then.
        MismatchError: the ranks wrap different models or settings; the text names who differs.
        UnsupportedTypeError: a parameter's dtype or device is not one that is exchanged.
    """

    def __init__(
        self,
        optimizer: Any,
        model: Any,
        comm: Communicator,
        *,
        root: int = 0,
        algorithm: str = "auto",
        segments: int | None = None,
    ) -> None:
        with telling(comm, "LayerwiseBSP"):
            require_arguments(model, comm)
            super().__init__(optimizer)
            for collective in ("reduce", "broadcast"):
                name = "direct" if algorithm == "auto" else algorithm
                _core.build_plan(collective, name, comm.world, 0, root, 1)  # its sentence
            if segments is not None and not (is_whole(segments) and 1 <= segments <= MOST_SEGMENTS):
                raise InvalidArgumentError(
                    f"segments must be None or from 1 to {MOST_SEGMENTS}, got {segments!r}"
                )
            self.comm, self.root = comm, root
            self._rounds = 0  # of the reducer, up to the last step() or zero_grad()
            self._model = model
            how: dict[str, Any] = {"algorithm": algorithm, "segments": segments, "async_op": True}
            self._reducer = Reducer(comm, _ToRoot(partial(comm.reduce, root=root, **how), comm.world))
            self._weights = WeightFlow(
                comm, model, root, partial(comm.broadcast, root=root, **how), self._reducer.number
            )
            members = claimable(self, find_members(model, self.param_groups))
            self._frozen = Frozen([member for member in members if not member.param.requires_grad])
            self._sent = [member for member in members if member.param.requires_grad]
            buckets = self._plan()
            if comm.world > 1:
                settings = f"{root=}, {algorithm=}, {segments=}"
                require_same_layout(comm, members, buckets, settings, find_buffers(model))
            tensors = [*(param for _, param in members), *model.buffers()] if comm.world > 1 else []
            require_plain(tensors)
            # After all that may be refused, before their weights change.
            self._reducer.has_local |= claim(self, members)
            broadcast_tensors(comm, tensors, root)
            self._attach(buckets)
            if comm.world > 1:
                self._watch_for_ddp(model, f"rank {comm.rank} of {comm.world}")

    def _plan(self) -> list[list[Member]]:
        layers = find_layers(self._model, self._sent)
        return [bucket for group in reversed(layers) for bucket in plan_buckets(group, "one")]

    def _attach(self, buckets: list[list[Member]]) -> None:
        self._reducer.attach(buckets)
        self._weights.attach(self._sent if self.comm.world > 1 else [])

    def release(self, params: Collection[Any]) -> bool:
        """Stops exchanging parameters that another wrapped optimizer trains from now on.

        Returns:
            Whether gradients are of this rank alone; after a backward() those of all but the root are.
        """
        gone = {id(param) for param in params}
        self._reducer.taken |= not gone.isdisjoint(trained(self))
        self._sent = [member for member in self._sent if id(member.param) not in gone]
        self._frozen = Frozen([member for member in self._frozen.members if id(member.param) not in gone])
        self._attach(self._plan())
        return self._reducer.has_local or self._reducer.rounds != self._rounds

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Lets the root's optimizer step on the mean gradients, clears them, starts to send the new weights.

        Args:
            closure: must be None: the ranks could not follow how often the root evaluates it.

        Returns:
            What the inner optimizer returns; None on the other ranks.

        Raises:
            InvalidArgumentError: a closure was given, a backward() failed half-way, there were several, a
                parameter was unfrozen after wrapping, or they were wrapped again since.
        """
        rank = f"rank {self.comm.rank} of {self.comm.world}"
        if closure is not None:
            raise InvalidArgumentError(f"[optim] LayerwiseBSP.step() takes no closure ({rank})")
        with telling(self.comm, "LayerwiseBSP.step"):  # who wait for the root's weights
            self._require_global(rank)
            result = self.inner.step() if self.comm.rank == self.root else _run_hooks(self.inner)
        self._weights.start()
        self._forget_gradients()
        self._reducer.steps += 1
        self._stop_watching()
        return result

    def _require_global(self, rank: str) -> None:
        self._reducer.require_global(rank)
        if self._reducer.rounds - self._rounds > 1:
            raise InvalidArgumentError(
                "[optim] step() after several backward(), whose gradients do not add up, for only the root's "
                "are global: call zero_grad() of this optimizer between them; where there was one, reentrant "
                f"checkpointing ran others inside it: use checkpoint(..., use_reentrant=False) ({rank})"
            )
        for name, param in self._frozen.members:
            if param.requires_grad and self.comm.world > 1:
                raise InvalidArgumentError(
                    f"[optim] parameter {name!r} was unfrozen after wrapping; wrap it anew ({rank})"
                )
        if self.comm.world > 1:
            self._frozen.require_old_gradients("call zero_grad(), or wrap it anew", rank)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients, and the leavings of a backward() that an exception cut short."""
        self._reducer.reset()
        self._rounds = self._reducer.rounds
        self.inner.zero_grad(set_to_none)
        self._frozen.note()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters that the model had at wrapping: the root's optimizer trains them too.

        Raises:
            InvalidArgumentError: one of them is new, or another optimizer's, so neither its gradients nor its
                weights would travel.
        """
        self.inner.add_param_group(param_group)
        known = {id(member.param) for member in (*self._sent, *self._frozen.members)}
        new = [param for param in self.param_groups[-1]["params"] if id(param) not in known]
        if new:
            self.param_groups.pop()
            raise InvalidArgumentError(
                f"[optim] add_param_group() with a parameter of shape {tuple(new[0].shape)} that was not "
                f"there at wrapping, or that another optimizer exchanges; wrap it anew "
                f"(rank {self.comm.rank} of {self.comm.world})"
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back what the root has saved, or a plain optimizer; the other ranks take its groups only."""
        mine = self.comm.rank == self.root
        super().load_state_dict(state_dict if mine else {**state_dict, "state": {}})

    def _forget_gradients(self) -> None:
        # A later backward would add to the mean on the root, to their own gradients on the others.
        self._rounds = self._reducer.rounds
        for _, param in self._sent if self.comm.world > 1 else ():
            param.grad = None

    def synchronize(self) -> None:
        """Returns when the weights of the last step() are there on this rank."""
        self._weights.wait()

    def stats(self) -> dict[str, float]:
        """Returns what the exchange has cost so far.

        Returns:
            ``steps`` (calls of step()), ``backward_wait_s`` (seconds that backward() waited at its end for
            gradients), ``forward_wait_s`` (seconds that forward passes waited for weights).
        """
        return {
            "steps": self._reducer.steps,
            "backward_wait_s": self._reducer.exposed_s,
            "forward_wait_s": self._weights.waited_s,
        }


@torch.optim.Optimizer.profile_hook_step  # type: ignore[untyped-decorator]
def _run_hooks(optimizer: Any) -> None:
    """Runs the hooks of an optimizer's step(), which schedulers take for one."""
    optimizer._opt_called = True


class _ToRoot(Exchange):
    """The mean of a bucket, on the root; the other ranks' buckets stay as they are."""

    name = "reduce"

    def __init__(self, reduce: Callable[..., Handle], world: int) -> None:
        self._reduce, self._world = reduce, world

    def start(self, buffer: Any, parts: Sequence[Part]) -> Handle:
        return self._reduce(buffer, **averaging(buffer, self._world))
