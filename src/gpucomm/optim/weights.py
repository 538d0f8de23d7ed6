"""Sends the root's weights to all ranks, layer by layer, while a forward pass uses the layers before."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from gpucomm import _core
from gpucomm.optim.hooks import ModuleHook, remove_all
from gpucomm.optim.members import Member
from gpucomm.optim.streams import Beside, used_here

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["WeightFlow", "find_layers"]

_Start = Callable[[Any], Any]  # starts the broadcast of a buffer, returns its work


def find_layers(model: Any, members: Sequence[Member]) -> list[list[Member]]:
    """Groups parameters by the first module that holds them, and by dtype and device, in registration order.

    Args:
        model: the module whose submodules are looked at.
        members: the parameters that are sent.

    Returns:
        The groups; at the end those that no module of the model holds.
    """
    left = {id(member.param): member for member in members}
    layers: list[list[Member]] = []
    for module in model.modules():
        own = [left.pop(id(param)) for param in module.parameters(recurse=False) if id(param) in left]
        layers += _by_kind(own)
    return [*layers, *_by_kind(left.values())]


def _find_holders(model: Any) -> dict[int, list[Any]]:
    """Lists the modules that hold a parameter themselves, by its id: several, where weights are tied."""
    holders: dict[int, list[Any]] = {}
    for module in model.modules():
        for param in module.parameters(recurse=False):
            holders.setdefault(id(param), []).append(module)
    return holders


def _by_kind(members: Iterable[Member]) -> Iterable[list[Member]]:
    kinds: dict[Any, list[Member]] = {}
    for member in members:
        kinds.setdefault((member.param.dtype, member.param.device), []).append(member)
    return kinds.values()


class _Layer:
    """Parameters that travel as one message.

    Args:
        members: the parameters, all of one dtype and device.
        holders: how many modules hold some of them; each waits for them before its forward.
    """

    def __init__(self, members: Sequence[Member], holders: int) -> None:
        self._params = [member.param for member in members]
        first = self._params[0]
        sizes = [param.numel() for param in self._params]
        self._flat = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        self._parts = [
            part.view(param.shape) for part, param in zip(self._flat.split(sizes), self._params, strict=True)
        ]
        self._work: Any = None
        self._beside = Beside()
        # The holders that no forward pass has gone through; what no module holds is never waited for there.
        self.silent = set(range(max(holders, 1)))

    @property
    def trained(self) -> int:
        """How many of its parameters are not frozen by now."""
        return sum(param.requires_grad for param in self._params)

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


class _Hook(ModuleHook):
    """Waits for a layer, or for all, before a module goes on: on behalf of a flow, while that lives.

    Args:
        flow: kept by a weak reference, for the modules outlive a discarded optimizer.
        layer: which to wait for; None: all.
        holder: the module's number among those that hold the layer's parameters.
    """

    def __init__(self, flow: WeightFlow, layer: _Layer | None = None, holder: int = 0) -> None:
        self._flow, self._layer, self._holder = weakref.ref(flow), layer, holder
        # What waits cannot be compiled: a compiled model is cut there.
        self._run_as_it_is = torch.compiler.disable(_Hook.run)

    def __call__(self, *_: Any) -> None:
        self._run_as_it_is(self)

    def run(self) -> None:
        """Waits."""
        if (alive := self._flow()) is None:
            return
        if self._layer is None:
            alive.wait()
        else:
            self._layer.silent.discard(self._holder)
            alive.wait([self._layer])


class WeightFlow:
    """The broadcasts of all layers: `start` issues them in order, a layer's forward waits for its own.

    A layer is waited for at once as long as no forward pass has gone through each module that holds its
    parameters (another module reads them, as those of `MultiheadAttention.out_proj` are).

    Args:
        comm: the ranks.
        model: its modules wait before their forward; their state_dict() and load_state_dict() wait for all.
        root: the rank that gives the weights.
        broadcast: starts the broadcast of a buffer.
        number: of the optimizer among those of the communicator, which its messages tell.
    """

    def __init__(self, comm: Communicator, model: Any, root: int, broadcast: _Start, number: int) -> None:
        self._comm, self._model = comm, model
        self._number, self._rounds = number, 0
        self._gives = comm.rank == root
        self._broadcast = broadcast
        self._layers: list[_Layer] = []
        self._handles: list[Any] = []
        self.waited_s = 0.0
        weakref.finalize(self, remove_all, self._handles)

    def attach(self, members: Sequence[Member]) -> None:
        """Takes over these parameters in place of the present ones, whose weights it waits for."""
        if not self._comm.closed:  # else they never come
            self.wait()
        remove_all(self._handles)
        waits = _Hook(self)
        for module in self._model.modules():  # a part may be saved or loaded alone
            self._handles.append(module.register_state_dict_pre_hook(waits))
            # Else they would overwrite what is loaded.
            self._handles.append(module.register_load_state_dict_pre_hook(waits))
        holders = _find_holders(self._model)
        self._layers = [self._make_layer(group, holders) for group in find_layers(self._model, members)]

    def _make_layer(self, group: Sequence[Member], holders: dict[int, list[Any]]) -> _Layer:
        modules = dict.fromkeys(module for _, param in group for module in holders.get(id(param), ()))
        layer = _Layer(group, len(modules))
        for number, module in enumerate(modules):
            # First of all: another hook may compute with the weights, as pruning and weight_norm do.
            hook = _Hook(self, layer, number)
            self._handles.append(module.register_forward_pre_hook(hook, prepend=True))
        return layer

    def start(self) -> None:
        """Sends all layers; returns before they have arrived."""
        self.wait()  # weights that no forward has asked for
        for index, layer in enumerate(self._layers):
            # Where a rank alone has frozen some, the ranks do not train the same.
            with _core.Label(self._number, self._rounds, index, trained=layer.trained):
                layer.start(self._broadcast, self._gives)
        self._rounds += 1
        self.wait([layer for layer in self._layers if layer.silent])

    def wait(self, layers: Sequence[_Layer] | None = None) -> None:
        """Returns when these layers' weights are there; by default all."""
        begin = perf_counter()
        for layer in self._layers if layers is None else layers:
            layer.wait(self._gives)
        self.waited_s += perf_counter() - begin
