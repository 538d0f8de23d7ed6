"""Which parameters travel together under FSDP2, and how: all that is read of torch's private parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from gpucomm.errors import InvalidArgumentError, UnavailableError
from gpucomm.optim.fsdp.slots import Slot

__all__ = ["Group", "copied", "find_groups"]


class Group:
    """The parameters that one FSDP2 message carries.

    Args:
        inner: torch's parameter group.
        module: one of its modules, which carries the setters.
        name_of: gives the fully qualified name of a module's parameter.
        place: among the groups of the model, from 0.
    """

    def __init__(self, inner: Any, module: Any, name_of: Callable[[Any, str], str], place: int) -> None:
        self._inner = inner
        self.place = place
        self.module = module
        self.world = inner.mesh_info.shard_process_group.size()
        self.device = inner.device
        self._params = {
            name_of(p._module_info.module, p._module_info.param_name): p for p in inner.fsdp_params
        }
        self.slots = {
            name: Slot(name, tuple(p._orig_size), p.fsdp_placement.dim, self.world)
            for name, p in self._params.items()
        }
        self.specs = {name: p._sharding_spec for name, p in self._params.items()}  # torch's, of DTensors
        self._watched: dict[str, Any] = {}
        self._arrived: set[str] = set()

    @property
    def process_group(self) -> Any:
        """Torch's process group among whose ranks the parameters are sharded."""
        return self._inner.mesh_info.shard_process_group

    @property
    def divides_by_all(self) -> bool:
        """Whether gradients become a mean, not a sum divided by a factor of the user's."""
        return self._inner.gradient_divide_factor is None

    @property
    def worth(self) -> float:
        """What a gradient that one rank sends counts for in the gradient of this copy of the model."""
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import _get_gradient_divide_factors

        inner, dtypes = self._inner, self.reduced_dtypes()
        _, divided_after, op, _ = _get_gradient_divide_factors(
            self.process_group,
            None,
            next(iter(dtypes.values()), torch.float32),
            self.device.type,
            inner.gradient_divide_factor,
            inner.force_sum_reduction_for_comms,
        )
        return 1.0 / (divided_after or 1.0) / (self.world if op == dist.ReduceOp.AVG else 1)

    def gathered_dtypes(self) -> dict[str, Any]:
        """Returns in which dtype each parameter is gathered, by name."""
        policy = self._inner.mp_policy
        return {
            name: policy.param_dtype
            if policy.param_dtype and p.sharded_param.is_floating_point()
            else p.sharded_param.dtype
            for name, p in self._params.items()
        }

    def reduced_dtypes(self) -> dict[str, Any]:
        """Returns in which dtype each trainable parameter's gradient is reduced, by name."""
        policy, gathered = self._inner.mp_policy, self.gathered_dtypes()
        return {name: policy.reduce_dtype or gathered[name] for name in self._trainable()}

    def require_plain(self) -> None:
        """Checks that the group's messages go where the communicator goes.

        Raises:
            InvalidArgumentError: they do not.
        """
        inner = self._inner
        if inner.device.type not in ("cpu", "cuda"):
            raise InvalidArgumentError(
                f"[fsdp] gpucomm moves arrays in host memory and on CUDA's GPUs, but {self} is on "
                f"{inner.device}: shard over a mesh of cpu or cuda"
            )
        if inner._use_post_forward_mesh:
            raise InvalidArgumentError(
                f"[fsdp] {self} is resharded after forward to fewer ranks than the communicator has: "
                "give reshard_after_forward=True or False, not a number"
            )

    @property
    def replicates(self) -> bool:
        """Whether torch itself all-reduces the gradients over the other dimension of its mesh."""
        return bool(self._inner._is_hsdp)

    def watch(self) -> None:
        """From now on notes which parameters get a gradient in backward."""
        for module in self._inner.modules:
            module.register_forward_pre_hook(lambda *_: self._watch_unsharded())

    def _watch_unsharded(self) -> None:
        # Torch makes the unsharded parameters in the first forward, and keeps them.
        for name, param in self._params.items():
            unsharded = param.unsharded_param
            if unsharded.requires_grad and self._watched.get(name) is not unsharded:
                unsharded.register_post_accumulate_grad_hook(lambda _, name=name: self._arrived.add(name))
                self._watched[name] = unsharded

    def travelling(self, numel: int) -> tuple[Slot, ...]:
        """Tells whose gradients a reduce-scatter holds: those that backward has reached.

        Args:
            numel: its elements.

        Returns:
            The slots, in the order of the message.

        Raises:
            InvalidArgumentError: none of the sets known makes so many elements.
        """
        arrived, self._arrived = self._arrived, set()
        for names in (arrived, self._trainable()):
            slots = tuple(slot for name, slot in self.slots.items() if name in names)
            if numel == self.world * sum(slot.columns for slot in slots):
                return slots
        raise InvalidArgumentError(
            f"[fsdp] {self} reduces {numel} elements, but the gradients seen are those of "
            f"{', '.join(sorted(arrived)) or 'none'}: call the modules themselves, "
            "or give error_feedback=False"
        )

    def _trainable(self) -> set[str]:
        return {name for name, p in self._params.items() if p.sharded_param.requires_grad}

    def __str__(self) -> str:
        return f"the group of parameter {next(iter(self.slots))!r}"


def find_groups(model: Any) -> list[Group]:
    """Lists the parameter groups of a model.

    Raises:
        InvalidArgumentError: no module is an FSDPModule, or one has several groups.
        UnavailableError: this torch keeps its groups in another way.
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(f"[fsdp] model must be a torch.nn.Module, got {type(model).__name__}")
    found: dict[int, Group] = {}
    try:
        for module in model.modules():
            if not isinstance(module, FSDPModule):
                continue
            inners = _inner_groups(module._get_fsdp_state())
            if len(inners) > 1:
                raise InvalidArgumentError(
                    f"[fsdp] {type(module).__name__} has {len(inners)} parameter groups (shard_placement_fn "
                    "gives several meshes), and own communication needs one"
                )
            for inner in inners:
                group = found.setdefault(id(inner), Group(inner, module, _namer(model), len(found)))
                assert group.worth > 0  # so that another torch is told of now
    except (AttributeError, ImportError) as error:
        raise UnavailableError(
            f"[fsdp] torch {torch.__version__} keeps FSDP2's parameter groups in a way not known here "
            f"({error}); torch 2.13 is known to work"
        ) from error
    if not found:
        raise InvalidArgumentError(
            f"[fsdp] no module of {type(model).__name__} is sharded: call fully_shard(...) before use(...)"
        )
    return list(found.values())


def copied(groups: Sequence[Group]) -> str | None:
    """A parameter of which other ranks than those of the shards hold copies, or None.

    Beside tensor parallelism those are the replicated ones, and all that it has left as they were.
    """
    specs = [item for group in groups for item in group.specs.items()]
    beside = any(spec.mesh.ndim > 1 and spec.mesh.size() > spec.mesh.size(0) for _, spec in specs)
    for name, spec in specs:
        sizes = [spec.mesh.size(dim) for dim, place in enumerate(spec.placements) if place.is_replicate()]
        if max(sizes, default=1) > 1 or (beside and spec.mesh.ndim == 1):
            return name
    return None


def _inner_groups(state: Any) -> list[Any]:
    """Torch's groups of a module; older releases keep one, or None."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def _namer(model: Any) -> Callable[[Any, str], str]:
    prefixes: dict[int, str] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        prefixes.setdefault(id(module), prefix)

    def name_of(module: Any, name: str) -> str:
        prefix = prefixes[id(module)]
        return f"{prefix}.{name}" if prefix else name

    return name_of
