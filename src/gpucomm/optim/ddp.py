"""An exchange as the communication hook of PyTorch's DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from gpucomm import _core
from gpucomm import exchange as exchanges
from gpucomm.errors import InvalidArgumentError, UnsupportedTypeError
from gpucomm.exchange import Handle, Part
from gpucomm.optim.agreement import next_number, require_communicator, telling
from gpucomm.optim.hooks import ModuleHook
from gpucomm.optim.stepping import Stepping
from gpucomm.optim.streams import Beside
from gpucomm.waiter import Waiter

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["BucketHook", "use"]


def use(
    model: Any,
    comm: Communicator,
    exchange: str = "dense",
    algorithm: str = "auto",
    segments: int | None = None,
) -> BucketHook:
    """Lets gpucomm exchange the gradients of a model that DistributedDataParallel wraps.

    DDP keeps what is its own: buckets, no_sync(), unused parameters, buffers; its process group, Gloo's say,
    carries only the first weights and buffers. To be called before the first backward(), on all ranks.

    Where find_unused_parameters lets a backward leave out parameters on all ranks, DDP drops what was
    exchanged for them, and with it what was held back of their gradients before.

    Args:
        model: a DistributedDataParallel that has no hook yet.
        comm: the ranks; the same as in DDP's process group.
        exchange: how a bucket becomes global: ``"dense"``, or the spec of a codec such as ``"int8"``.
        algorithm: which collective algorithm carries it, ``"auto"`` to choose by cost.
        segments: into how many pieces it cuts a message, None to choose.

    Returns:
        What tells the cost, and holds the exchange's state to save and load.

    Raises:
        InvalidArgumentError: not such a model, or one that has a hook; another number of ranks, or a bad
            exchange or algorithm.
        UnsupportedTypeError: a parameter's dtype is not one that the exchange takes, or its gradients are
            sparse.
        UnavailableError: this rank has no thread to end calls on.
        MismatchError: the ranks ask for different exchanges; the text names who differs.
    """
    with telling(comm, "ddp.use"):
        how = _create(model, comm, exchange, algorithm, segments)
        hook = BucketHook(model.module, comm, how)
        try:
            model.register_comm_hook(hook, _run)
        except RuntimeError as error:
            raise InvalidArgumentError(f"[ddp] the model can have no other hook: {error}") from error
    return hook


def _create(
    model: Any, comm: Communicator, exchange: str, algorithm: str, segments: int | None
) -> exchanges.Exchange:
    require_communicator(comm, "ddp")
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise InvalidArgumentError(
            f"[ddp] model must be a DistributedDataParallel, got {type(model).__name__} "
            f"(rank {comm.rank} of {comm.world})"
        )
    if model.process_group.size() != comm.world:
        raise InvalidArgumentError(
            f"[ddp] the model's process group has {model.process_group.size()} ranks, but the communicator "
            f"{comm.world}: they must be the same (rank {comm.rank} of {comm.world})"
        )
    for name, module in model.module.named_modules():
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse:
            raise UnsupportedTypeError(
                f"[ddp] the gradients of module {name!r} are sparse, but only dense ones are exchanged; "
                f"build it with sparse=False (rank {comm.rank} of {comm.world})"
            )
    how = exchanges.create(exchange, comm, algorithm=algorithm, segments=segments)
    for name, param in model.module.named_parameters():
        if param.requires_grad:
            how.require(param.dtype, name)
    return how


def _run(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are text
    return state.start(bucket)


class BucketHook(ModuleHook):
    """Exchanges DDP's buckets; made by :func:`use`. Copies of the model have no hook, and may be given one.

    Args:
        module: what DDP wraps; its names are the parameters'.
        comm: the ranks.
        exchange: makes a bucket global.
    """

    def __init__(self, module: Any, comm: Communicator, exchange: exchanges.Exchange) -> None:
        self._comm = comm
        self._exchange = exchange
        self._stepping = Stepping(exchange)
        named = [(exchanges.plain_name(name), param) for name, param in module.named_parameters()]
        self._names = {id(param): name for name, param in named}
        self._sizes = {name: param.numel() for name, param in named}
        self._waiter = Waiter(comm)
        self._beside = Beside()  # one stream for all buckets: what the exchange keeps of a round is theirs
        self._number = next_number(comm)
        self._begun = 0  # rounds
        self._bytes_before = 0
        self._bytes_sent = 0
        self._rounds = 0
        self._hooks_s = 0.0

    def start(self, bucket: Any) -> Any:
        """Starts the exchange of a bucket.

        Args:
            bucket: a torch.distributed.GradBucket.

        Returns:
            A torch.futures.Future of the mean over the ranks.
        """
        begin = perf_counter()
        if bucket.index() == 0:
            self._begun += 1
            self._bytes_before = self._comm.stats()["bytes_sent"]
        buffer = bucket.buffer()
        # What another model, round or bucket of a rank's sends is a mismatch, of whatever size.
        label = _core.Label(self._number, self._begun - 1, bucket.index())
        with self._beside.behind(buffer), label:
            work = self._exchange.start(buffer, self._parts(bucket))
        # One with devices makes the stream that waits for it wait for those that were current at set_result.
        mean: Any = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
        faults: list[Exception] = []
        # An exception set on a future would end the process in DDP; one raised by what hangs on it does not.
        checked = mean.then(lambda future: _value_or_error(future, faults))
        ends = bucket.index() == 0, bucket.is_last()
        self._waiter.submit(partial(self._finish, work, mean, faults, *ends, buffer))
        self._hooks_s += perf_counter() - begin
        return checked

    def _parts(self, bucket: Any) -> list[Part]:
        first = bucket.buffer().storage_offset()
        return [
            Part(self._names[id(param)], gradient.storage_offset() - first, gradient.numel())
            for param, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
        ]

    def _finish(
        self, work: Handle, mean: Any, faults: list[Exception], first: bool, last: bool, buffer: Any
    ) -> None:
        with self._beside.inside():
            try:
                if first:
                    self._exchange.end_round(used=False)  # what a failed backward has left
                work.wait()
                if last:
                    self._exchange.end_round()
                    self._stepping.round_ended(self._names)
                    self._rounds += 1
                    self._bytes_sent += self._comm.stats()["bytes_sent"] - self._bytes_before
            except Exception as error:  # whatever it is: DDP waits for the future
                faults.append(error)
            mean.set_result(buffer)

    def stats(self) -> dict[str, float]:
        """Returns what the exchange has cost so far.

        Returns:
            ``rounds`` (exchanges of all gradients), ``bytes_per_step`` (sent by this rank on the communicator
            from a round's first bucket to its end, from the transport's counters, and so what others send on
            it meanwhile too), ``hooks_s`` (seconds spent starting messages).
        """
        return {
            "rounds": self._rounds,
            "bytes_per_step": self._bytes_sent / max(self._rounds, 1),
            "hooks_s": self._hooks_s,
        }

    def discard(self) -> None:
        """Forgets what backward() has lost since an optimizer stepped, whose gradients are thrown away."""
        with self._beside.inside():
            self._exchange.discard(self._sizes.keys())
        self._beside.join()

    def state_dict(self) -> dict[str, Any]:
        """Returns what the exchange keeps on this rank; empty for ``"dense"``."""
        return self._exchange.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what this rank has saved.

        Raises:
            InvalidArgumentError: this exchange keeps no state, or it is that of another model, or of another
                rank or world; see :func:`gpucomm.exchange.reshard`.
        """
        rank = f"rank {self._comm.rank} of {self._comm.world}"
        exchanges.require_known(state, self._sizes, f"ddp, {rank}")
        self._exchange.load_state_dict(state)


def _value_or_error(future: Any, faults: list[Exception]) -> Any:
    if faults:
        raise faults[0]
    return future.value()
