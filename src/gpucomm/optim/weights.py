"""Sends the root's weights to all ranks, layer by layer, while a forward pass uses the layers before."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from gpucomm.optim.members import Member
from gpucomm.optim.streams import Beside, used_here

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["WeightFlow", "find_layers"]

_Start = Callable[[Any], Any]  # starts the broadcast of a buffer, returns its work


def find_layers(model: Any, members: Sequence[Member]) -> Iterator[tuple[Any, list[Member]]]:
    """Groups parameters by the module that holds them, and by dtype and device, in registration order.

    Args:
        model: the module whose submodules are looked at.
        members: the parameters that are sent.

    Yields:
        The module, or None for parameters that no module of the model holds, and its parameters.
    """
    left = {id(member.param): member for member in members}
    for module in model.modules():
        own = [left.pop(id(param)) for param in module.parameters(recurse=False) if id(param) in left]
        for group in _by_kind(own):
            yield module, group
    for group in _by_kind(left.values()):
        yield None, group


def _by_kind(members: Iterable[Member]) -> Iterable[list[Member]]:
    kinds: dict[Any, list[Member]] = {}
    for member in members:
        kinds.setdefault((member.param.dtype, member.param.device), []).append(member)
    return kinds.values()


class _Layer:
    """Parameters that travel as one message."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._params = [member.param for member in members]
        first = self._params[0]
        sizes = [param.numel() for param in self._params]
        self._flat = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        self._parts = [
            part.view(param.shape) for part, param in zip(self._flat.split(sizes), self._params, strict=True)
        ]
        self._work: Any = None
        self._beside = Beside()
        self.called = False  # a forward pass has gone through its module

    def start(self, broadcast: _Start, gives: bool) -> None:
        """Sends the weights of the rank that gives them."""
        if gives:
            self._beside.join()  # the last message, which has been read
            self._copy(self._parts, self._params)
        with self._beside.behind(self._flat):
            self._work = broadcast(self._flat)

    def wait(self, gives: bool) -> None:
        """Returns when the weights are there; at once where they are."""
        work, self._work = self._work, None
        if work is None:
            return
        with self._beside.inside():
            work.wait()
        if not gives:
            self._beside.join()
            self._copy(self._params, self._parts)

    def _copy(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        used_here(self._flat)
        with torch.no_grad():
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)


def _remove(handles: list[Any]) -> None:
    while handles:
        handles.pop().remove()


class WeightFlow:
    """The broadcasts of all layers: `start` issues them in order, a layer's forward waits for its own.

    A layer whose module no forward pass has gone through yet (its weights are read by another module, as
    those of `MultiheadAttention.out_proj` are) is waited for at once.

    Args:
        comm: the ranks.
        model: its modules wait before their forward; its state_dict() and load_state_dict() wait for all.
        members: the parameters to send.
        root: the rank that gives them.
        broadcast: starts the broadcast of a buffer.
    """

    def __init__(
        self, comm: Communicator, model: Any, members: Sequence[Member], root: int, broadcast: _Start
    ) -> None:
        self._gives = comm.rank == root
        self._broadcast = broadcast
        self._layers: list[_Layer] = []
        self.waited_s = 0.0
        handles: list[Any] = []
        me = weakref.ref(self)  # the modules outlive a discarded optimizer

        def before_state(*_: Any) -> None:
            if (alive := me()) is not None:
                alive.wait()

        handles.append(model.register_state_dict_pre_hook(before_state))
        handles.append(model.register_load_state_dict_pre_hook(before_state))  # else they overwrite it
        for module, group in find_layers(model, members):
            self._layers.append(layer := _Layer(group))
            if module is not None:
                handles.append(module.register_forward_pre_hook(self._before_forward(me, layer)))
        weakref.finalize(self, _remove, handles)

    @staticmethod
    def _before_forward(me: weakref.ref[WeightFlow], layer: _Layer) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if (alive := me()) is not None:
                layer.called = True
                alive.wait([layer])

        return hook

    def start(self) -> None:
        """Sends all layers; returns before they have arrived."""
        self.wait()  # weights that no forward has asked for
        for layer in self._layers:
            layer.start(self._broadcast, self._gives)
        self.wait([layer for layer in self._layers if not layer.called])

    def wait(self, layers: Sequence[_Layer] | None = None) -> None:
        """Returns when these layers' weights are there; by default all."""
        begin = perf_counter()
        for layer in self._layers if layers is None else layers:
            layer.wait(self._gives)
        self.waited_s += perf_counter() - begin
