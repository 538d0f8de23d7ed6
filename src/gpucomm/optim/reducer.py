"""Sends buckets while backward still runs, and waits for them where it ends."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from gpucomm import _core
from gpucomm.errors import Error, InvalidArgumentError
from gpucomm.exchange import Exchange
from gpucomm.optim.agreement import next_number
from gpucomm.optim.buckets import Bucket
from gpucomm.optim.hooks import remove_all
from gpucomm.optim.members import Member
from gpucomm.optim.stepping import Stepping, names_in
from gpucomm.optim.streams import Beside, used_here

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["Reducer"]


class _Hook:
    """Tells of a parameter's gradient, behind all other hooks that may still change it."""

    def __init__(self, reducer: Reducer, bucket: int, slot: int, param: Any) -> None:
        # Weak: the parameters outlive a discarded optimizer, and must not keep its buffers.
        self._reducer = weakref.ref(reducer)
        self._place = bucket, slot
        self._handle = param.register_post_accumulate_grad_hook(self)

    def __call__(self, param: Any) -> None:
        reducer = self._reducer()
        if reducer is not None:
            reducer.on_gradient(*self._place, last=self._goes_last(param))

    def _goes_last(self, param: Any) -> bool:
        """Whether it does; if not, it will the next time."""
        if next(reversed(self._handle.hooks_dict_ref())) == self._handle.id:
            return True
        self._handle.remove()
        self._handle = param.register_post_accumulate_grad_hook(self)
        return False

    def remove(self) -> None:
        """Hears of no more gradients."""
        self._handle.remove()


# By autograd task those whose gradients it makes. At its end all send what is left before any waits: other
# ranks may come to the optimizers in another order.
_together: dict[int, list[weakref.ref[Reducer]]] = {}


class Reducer:
    """One round per backward: hooks fill and send buckets, a callback at its end completes it.

    Buckets are sent strictly in their order, so that every rank issues the same calls whatever its graph is.
    All of it runs in the thread that runs backward: the caller's, for tensors of a GPU autograd's own. The
    streams that are current there order it: messages come after the gradients, and what comes after
    backward() on the caller's stream after the messages.

    Args:
        comm: the ranks; alone, nothing is copied or sent.
        exchange: makes a bucket global.
    """

    def __init__(self, comm: Communicator, exchange: Exchange) -> None:
        self._comm = comm
        self._exchange = exchange
        self.number = next_number(comm)
        self._buckets: list[Bucket] = []
        self._names: dict[int, str] = {}  # of their parameters, by id
        self._hooks: list[_Hook] = []
        self._beside = Beside()
        self._stepping = Stepping(exchange)
        self._hooked = threading.Lock()  # autograd has a thread for each GPU
        self._tasks: set[int] = set()  # autograd tasks at whose end this round is completed
        self._sent = 0  # how many buckets of this round are under way
        self._given_up = 0  # rounds that had sent something
        self._bytes_before = 0
        self.synchronising = True
        self.has_local = False  # gradients were made that no exchange has seen
        self.taken = False  # a newer optimizer has some of the parameters that this one trains
        self.rounds = 0
        self.steps = 0  # of the optimizer: ranks that have not stepped alike must not share a round
        self.bytes_sent = 0
        self.exposed_s = 0.0
        self.hooks_s = 0.0
        weakref.finalize(self, remove_all, self._hooks)

    def attach(self, buckets: Sequence[Sequence[Member]]) -> None:
        """Takes over these buckets in place of the present ones."""
        local = self.has_local or self.running
        self.reset()
        self.has_local = local  # the parameters hold what they held
        remove_all(self._hooks)
        self._buckets = [Bucket(members, self._comm) for members in buckets] if self._comm.world > 1 else []
        self._names = {id(param): name for members in buckets for name, param in members}
        for bucket in self._buckets:
            self._beside.open(bucket.buffer)
        self._keep_backward_apart()
        for index, members in enumerate(buckets):
            for slot, (_, param) in enumerate(members):
                self._hooks.append(_Hook(self, index, slot, param))

    def _keep_backward_apart(self) -> None:
        # Autograd has one thread for a GPU. Where ranks are threads, the end of one rank's backward would
        # wait there for gradients of another's, which stands behind it; so each runs in its own thread.
        if self._comm.transport == "local" and any(bucket.buffer.is_cuda for bucket in self._buckets):
            torch.autograd.set_multithreading_enabled(False)

    @property
    def shared_buckets(self) -> int:
        """How many buckets lie in the ranks' shared heap."""
        return sum(bucket.shared for bucket in self._buckets)

    @property
    def running(self) -> bool:
        """Whether a round has begun and not ended."""
        return bool(self._tasks)

    def on_gradient(self, bucket: int, slot: int, *, last: bool) -> None:
        """Takes a gradient that autograd has just finished.

        Args:
            bucket: of its parameter.
            slot: of its parameter in the bucket.
            last: nobody changes it any more; else it is taken where backward ends.
        """
        if not self.synchronising or self._comm.world == 1:
            self.has_local = not self.synchronising
            return
        begin = perf_counter()
        try:
            with self._hooked:
                self._join_task()
                self._beside.note(self._buckets[bucket].buffer)
                if last:
                    self._buckets[bucket].take(slot)
                    self._send(filling=False)
        except Error as error:
            raise self._explain(error) from None
        self.hooks_s += perf_counter() - begin

    def synchronise(self) -> None:
        """Completes the round: sends what is left and returns when every gradient is global."""
        if self._comm.world > 1:
            self.has_local = True  # until all is there
            try:
                self._begin()
                self._complete()
            except Error as error:
                raise self._explain(error) from None
        self.has_local = False

    def reset(self) -> None:
        """Gives up a round that an exception has cut short, once nothing writes into its buckets any more."""
        try:
            with self._beside.inside():
                for bucket in self._buckets:
                    if bucket.work is not None and not self._comm.closed:
                        bucket.work.wait()
        except Error as error:
            raise self._explain(error) from None
        with self._beside.inside():
            self._exchange.end_round(used=False)
        self._beside.join()
        self._given_up += self._sent > 0
        self._clear()
        self.has_local = False

    def discard(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Hears that the gradients of these groups' parameters are cleared, used or not."""
        if not self._exchange.follows_steps:
            return
        with self._beside.inside():
            self._exchange.discard(names_in(groups, self._names))
        self._beside.join()

    def _join_task(self) -> None:
        task = torch._C._current_graph_task_id()
        if task in self._tasks:
            return
        self._begin()
        self._tasks.add(task)
        _together.setdefault(task, []).append(weakref.ref(self))
        # Every task gets a callback, not only the first: one whose backward failed never runs its own.
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self._on_backward_end(task))

    def _on_backward_end(self, task: int) -> None:
        for one in _together.pop(task, []):
            if reducer := one():
                reducer.send_rest()
        if self.running:
            self.synchronise()

    def send_rest(self) -> None:
        """Sends what is left of the round, if there is one, and waits for nothing."""
        if not self.running:
            return
        begin = perf_counter()
        try:
            self._send(filling=True)
        except Error as error:
            raise self._explain(error) from None
        self.hooks_s += perf_counter() - begin

    def _begin(self) -> None:
        if self.running:
            return
        self._bytes_before = self._comm.stats()["bytes_sent"]
        buffers = {bucket.buffer.untyped_storage().data_ptr() for bucket in self._buckets}
        for bucket in self._buckets:
            bucket.keep_apart(buffers)

    def _send(self, *, filling: bool) -> None:
        while self._sent < len(self._buckets):
            bucket = self._buckets[self._sent]
            if filling:
                bucket.fill()
            if not bucket.complete:
                break
            bucket.mark()
            # What another optimizer, round or bucket of a rank's sends is a mismatch, of whatever size.
            label = _core.Label(self.number, self.rounds + self._given_up, self._sent, self.steps)
            with self._beside.behind(bucket.buffer), label:
                bucket.work = self._exchange.start(bucket.buffer, bucket.parts)
            self._sent += 1

    def _complete(self) -> None:
        begin = perf_counter()
        self._send(filling=True)
        waiting = perf_counter()
        with self._beside.inside():
            for bucket in self._buckets:
                if bucket.work is not None:
                    bucket.work.wait()
            self._exchange.end_round()
        self._stepping.round_ended(self._names)
        self._beside.join()
        done = perf_counter()
        for bucket in self._buckets:
            used_here(bucket.buffer)
            bucket.settle_unused()
        self._clear()
        self.rounds += 1
        self.bytes_sent += self._comm.stats()["bytes_sent"] - self._bytes_before
        self.exposed_s += done - waiting
        self.hooks_s += waiting - begin + perf_counter() - done

    def _clear(self) -> None:
        for bucket in self._buckets:
            bucket.reset()
        for task in self._tasks & _together.keys():
            _together[task] = [one for one in _together[task] if one() not in (self, None)]
            if not _together[task]:
                del _together[task]
        self._tasks.clear()
        self._sent = 0

    def _explain(self, error: Error) -> Error:
        """Returns what to raise for a fault, and ends the round if the fault has closed the communicator."""
        if not self._comm.closed:
            return error  # messages may still be under way: reset() waits for them
        cause = self._first_fault() or error
        self._clear()
        self.has_local = True  # what the parameters hold is no mean
        return cause

    def _first_fault(self) -> Error | None:
        """Returns why the communicator was closed, where one of our messages knows more than "closed"."""
        for bucket in self._buckets:
            if bucket.work is not None:
                try:
                    bucket.work.wait()
                except Error as error:
                    return error
        return None

    def require_global(self, rank: str) -> None:
        """Checks that what the parameters hold is global, and that no newer optimizer exchanges it.

        Args:
            rank: which rank this is, for the text.

        Raises:
            InvalidArgumentError: a gradient was made that no exchange has seen, a backward() failed, or one
                does.
        """
        if self.running and torch._C._current_graph_task_id() != -1:
            raise InvalidArgumentError(
                f"[optim] step() inside backward(), whose end exchanges the gradients: call it later ({rank})"
            )
        if self.running:
            raise InvalidArgumentError(
                f"[optim] step() after a backward() that failed half-way; call zero_grad() first ({rank})"
            )
        if self.has_local:
            raise InvalidArgumentError(
                "[optim] step() with gradients of this rank alone: run the last backward() of a step outside "
                f"no_sync(), or call synchronize(), or zero_grad() to begin anew ({rank})"
            )
        if self.taken:
            raise InvalidArgumentError(
                f"[optim] step() of an optimizer whose parameters were wrapped again; use the newer ({rank})"
            )
