"""DistributedOptimizer: data-parallel training by three lines in a loop that already exists."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpucomm import exchange as exchanges
from gpucomm import merge as merging
from gpucomm.errors import InvalidArgumentError
from gpucomm.optim.agreement import require_same_layout, telling
from gpucomm.optim.closure import with_global_loss
from gpucomm.optim.frozen import Frozen
from gpucomm.optim.members import Member, find_buffers, find_members, plan_buckets
from gpucomm.optim.owners import claim, claimable, trained
from gpucomm.optim.reducer import Reducer
from gpucomm.optim.replicate import broadcast_tensors, require_plain
from gpucomm.optim.wrapped import WrappedOptimizer, require_arguments

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["DistributedOptimizer"]


class DistributedOptimizer(WrappedOptimizer):
    """Averages gradients over the ranks while backward still runs, then lets an optimizer step.

    After backward() every gradient is the mean over the ranks, so clipping, GradScaler, schedulers and
    closures do what they do with one process. Parameters and buffers are taken from rank 0 here, once; from
    then on the parameters stay bit-identical on all ranks. Every rank must run the same backward passes.
    Gradients are views of buffers that the next backward() fills again: clone one to keep it.

    Args:
        optimizer: any torch optimizer; its groups, state and defaults are shared, not copied.
        model: whose parameters it trains. Those that only one of the two has are exchanged too.
        comm: the ranks.
        merge: which gradients travel together: ``"per_tensor"``, ``"one"``, or a size such as ``"25MB"``.
        exchange: how a bucket becomes global: ``"dense"``, or coded, with error feedback: the spec of a codec
            such as ``"int8"``.
        algorithm: which collective algorithm carries it, ``"auto"`` to choose by cost.
        segments: into how many pieces it cuts a message, None to choose.
        save_residuals: whether state_dict() holds what a codec has held back, which is each rank's own. False
            where the checkpoint of one rank is loaded by all: then that is lost.

    Raises:
        InvalidArgumentError: an unknown merge, exchange or algorithm, or not a torch optimizer or model, or a
            model that DistributedDataParallel has, or whose lazy modules have run no forward. Also of a
            forward pass before the first step in which DistributedDataParallel has the model by then.
        MismatchError: the ranks wrap different models or settings; the text names who differs.
        UnsupportedTypeError: a parameter's dtype or device is not one that is exchanged, or it is sharded.
    """

    def __init__(
        self,
        optimizer: Any,
        model: Any,
        comm: Communicator,
        merge: str = "25MB",
        exchange: str = "dense",
        algorithm: str = "auto",
        segments: int | None = None,
        save_residuals: bool = True,
    ) -> None:
        with telling(comm, "DistributedOptimizer"):
            require_arguments(model, comm)
            super().__init__(optimizer)
            merging.parse(merge)
            self.comm = comm
            self._model = model
            self._merge = merge
            self._saves = save_residuals
            self._settings = (
                f"merge={merge!r}, exchange={exchange!r}, algorithm={algorithm!r}, segments={segments!r}"
            )
            self._rank = f"rank {comm.rank} of {comm.world}"
            self._members: list[Member] = []
            self._known: set[int] = set()  # their ids
            planned = self._plan(find_buffers(model))
            self._exchange = exchanges.create(exchange, comm, algorithm=algorithm, segments=segments)
            self._reducer = Reducer(comm, self._exchange)
            if comm.world > 1:
                require_plain(model.buffers())
            self._adopt(*planned)
            if comm.world > 1:
                broadcast_tensors(comm, model.buffers())
                self._watch_for_ddp(model, self._rank)

    def _plan(self, sent: Sequence[Member] = ()) -> tuple[list[Member], list[list[Member]]]:
        members = claimable(self, find_members(self._model, self.param_groups))
        buckets = plan_buckets(members, self._merge)
        if self.comm.world > 1:
            require_same_layout(self.comm, members, buckets, self._settings, sent, self.param_groups)
        return members, buckets

    def _adopt(self, members: list[Member], buckets: list[list[Member]]) -> None:
        for bucket in buckets:
            self._exchange.require(bucket[0].param.dtype, bucket[0].name)
        new = [param for _, param in members if id(param) not in self._known and self.comm.world > 1]
        require_plain(new)
        # After all that may be refused, before their weights change.
        self._reducer.has_local |= claim(self, members)
        broadcast_tensors(self.comm, new)
        self._attach(members, buckets)

    def _attach(self, members: list[Member], buckets: list[list[Member]]) -> None:
        self._members = members
        self._known = {id(member.param) for member in members}
        self._trainable = [member.param.requires_grad for member in members]
        self._frozen = Frozen([member for member in members if not member.param.requires_grad])
        self.buckets = [[member.name for member in bucket] for bucket in buckets]
        self._reducer.attach(buckets)

    def release(self, params: Collection[Any]) -> bool:
        """Stops exchanging parameters that another wrapped optimizer trains from now on.

        Returns:
            Whether gradients are of this rank alone.
        """
        gone = {id(param) for param in params}
        members = [member for member in self._members if id(member.param) not in gone]
        self._reducer.taken |= not gone.isdisjoint(trained(self))
        self._attach(members, plan_buckets(members, self._merge))
        return self._reducer.has_local

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Lets the inner optimizer step on the global gradients.

        Args:
            closure: evaluates the loss and its gradients, for optimizers that ask for it; they are given the
                mean of all ranks' losses.

        Returns:
            What the inner optimizer returns.

        Raises:
            InvalidArgumentError: a gradient is of this rank alone: accumulated under :meth:`no_sync` and
                never exchanged, of a parameter unfrozen or wrapped again since, of one put into param_groups
                without :meth:`add_param_group`, or of a failed backward().
        """
        if closure is None:
            self._require_global()
            result = self.inner.step()
        else:
            result = self.inner.step(with_global_loss(closure, self.comm, self._require_global))
        self._reducer.steps += 1
        self._stop_watching()  # a closure's forward passes are watched too
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients, and the leavings of a backward() that an exception cut short.

        Of gradients on which no optimizer has stepped a codec keeps nothing back for the next ones.
        Parameters frozen or unfrozen since leave or enter the buckets here, on all ranks at once.

        Raises:
            MismatchError: the ranks have unfrozen different parameters.
            UnsupportedTypeError: one that was unfrozen has a dtype that is not exchanged.
        """
        self._reducer.reset()
        self._reducer.discard(self.param_groups)
        self.inner.zero_grad(set_to_none)
        self._frozen.note()
        if [member.param.requires_grad for member in self._members] != self._trainable:
            with telling(self.comm, "zero_grad"):
                self._adopt(*self._plan())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, takes its parameters from rank 0 and plans the buckets anew; on all ranks at once.

        A group that is refused is not added.

        Raises:
            MismatchError: the ranks add different parameters.
            UnsupportedTypeError: one has a dtype or device that is not exchanged.
        """
        with telling(self.comm, "add_param_group"):
            self.inner.add_param_group(param_group)
            try:
                self._adopt(*self._plan())
            except Exception:
                self.param_groups.pop()
                raise

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Lets backward() add up gradients on this rank only; the next one outside exchanges the sum."""
        before, self._reducer.synchronising = self._reducer.synchronising, False
        try:
            yield
        finally:
            self._reducer.synchronising = before

    def synchronize(self) -> None:
        """Exchanges what the parameters hold now, for gradients that no synchronised backward() has seen.

        Wanted where gradients are set by hand, or where a rank had no batch while the others ran backward().
        """
        self._reducer.synchronise()

    def stats(self) -> dict[str, float]:
        """Returns what the exchange has cost so far.

        Returns:
            ``steps`` (calls of step()), ``rounds`` (exchanges of all gradients), ``bytes_per_step`` (sent by
            this rank on the communicator from a round's first gradient to its end, from the transport's
            counters, and so what others send on it meanwhile too), ``exposed_s`` (seconds that backward()
            waited at its end), ``hooks_s`` (seconds spent copying gradients and starting messages),
            ``shared_buckets`` (how many buckets lie in the ranks' shared heap and are read there; others are
            in private memory, as the heap is missing or full, or the parameters are on another device).
        """
        reducer = self._reducer
        return {
            "steps": reducer.steps,
            "rounds": reducer.rounds,
            "bytes_per_step": reducer.bytes_sent / max(reducer.rounds, 1),
            "exposed_s": reducer.exposed_s,
            "hooks_s": reducer.hooks_s,
            "shared_buckets": reducer.shared_buckets,
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the inner optimizer's state and one entry ``gpucomm``; a plain optimizer loads it too."""
        state = self._exchange.state_dict() if self._saves else {}
        mine = {"merge": self._merge, "exchange": self._exchange.name, "state": state}
        return {**self.inner.state_dict(), "gpucomm": mine}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back a state, a plain optimizer's too.

        What an exchange keeps (the residuals of a codec) is every rank's own: load what this rank has saved.
        State that this exchange does not understand is left aside; another lossy codec's it does. Where one
        is refused, nothing has changed: without its entry ``gpucomm``, or with ``save_residuals=False``, any
        rank's is taken.

        Raises:
            InvalidArgumentError: no state of this kind, or residuals of another model, or of another rank or
                world; see :func:`gpucomm.exchange.reshard`.
        """
        inner = dict(state_dict)
        mine = inner.pop("gpucomm", {})
        if not isinstance(mine, Mapping) or (mine and not {"exchange", "state"} <= set(mine)):
            raise InvalidArgumentError(
                f"[optim, {self._rank}] the entry 'gpucomm' must be what state_dict() made, got {mine!r:.200}"
            )
        understood = self._saves and self._exchange.understands(mine.get("exchange", ""))
        if understood:
            # Not only its own parameters: another optimizer may have taken some of them since.
            sizes = {name: param.numel() for name, param in find_members(self._model, self.param_groups)}
            exchanges.require_known(mine["state"], sizes, f"optim, {self._rank}")
        before = self._exchange.state_dict() if understood else {}
        try:
            if understood:
                self._exchange.load_state_dict(mine["state"])  # first: it refuses more than the inner one
            self.inner.load_state_dict(inner)
        except Exception:
            if understood:
                self._exchange.load_state_dict(before)
            raise
        if not understood:
            self._exchange.load_state_dict({})  # what the present run has kept back is no part of that one

    def _require_global(self) -> None:
        self._reducer.require_global(self._rank)
        self._require_exchanged()
        if self.comm.world > 1:
            advice = "call zero_grad() between unfreezing and backward()"
            self._frozen.require_old_gradients(advice, self._rank)

    def _require_exchanged(self) -> None:
        for number, group in enumerate(self.param_groups):
            for param in group["params"]:
                if id(param) not in self._known:
                    raise InvalidArgumentError(
                        f"[optim] a parameter of shape {tuple(param.shape)} in param_groups[{number}] is not "
                        "exchanged, as it has not come by add_param_group() of this optimizer: call that "
                        f"instead, or wrap again ({self._rank})"
                    )
