"""Which parameters are exchanged, what they are called, and in which buckets they travel."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parallel import DistributedDataParallel

from gpucomm import merge
from gpucomm.errors import InvalidArgumentError, UnsupportedTypeError
from gpucomm.exchange import plain_name

__all__ = ["Member", "find_buffers", "find_members", "plan_buckets"]

_FSDP1 = (
    "of which a rank has a part only: shard by fully_shard and call gpucomm.optim.fsdp.use, or let "
    "torch.distributed send it, with gpucomm as its backend"
)
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Member(NamedTuple):
    """A parameter, or a buffer, and its name, the same on every rank."""

    name: str
    param: Any


def _named(model: Any, groups: Sequence[dict[str, Any]]) -> Iterator[Member]:
    for name, param in model.named_parameters():
        yield Member(plain_name(name), param)
    for number, group in enumerate(groups):
        for place, param in enumerate(group["params"]):
            yield Member(f"param_groups.{number}.{place}", param)


def find_members(model: Any, groups: Sequence[dict[str, Any]]) -> list[Member]:
    """Lists the parameters of the model and then those that only the optimizer has, each once.

    Those that only the model has are exchanged too: else a gradient norm over the model's parameters, as
    clipping takes it, would differ between the ranks, and the weights with it.

    Raises:
        InvalidArgumentError: a module is a DistributedDataParallel, or a lazy one that has run no forward.
        UnsupportedTypeError: one is sharded: a DTensor, or of a FullyShardedDataParallel.
    """
    for name, module in model.named_modules():
        _require_plain_module(f"module {name!r}" if name else "model", module)
    once: dict[int, Member] = {}
    for member in _named(model, groups):
        _require_whole(member)
        once.setdefault(id(member.param), member)
    return list(once.values())


def find_buffers(model: Any) -> list[Member]:
    """Lists the buffers of the model, each once."""
    return [Member(plain_name(name), buffer) for name, buffer in model.named_buffers()]


def _require_plain_module(what: str, module: Any) -> None:
    if isinstance(module, DistributedDataParallel):
        raise InvalidArgumentError(
            f"[optim] {what} is a DistributedDataParallel, which averages the same gradients in its own "
            "buckets: call gpucomm.optim.ddp.use in place of this wrapper, or wrap and run the model inside "
            "it (its attribute module) alone"
        )
    # Where its module is not loaded, which takes long, no model is one.
    sharded = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
    if isinstance(module, sharded):
        raise UnsupportedTypeError(f"[optim] {what} is a FullyShardedDataParallel, {_FSDP1}")
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        raise InvalidArgumentError(
            f"[optim] {what} is a {type(module).__name__} whose parameters or buffers have no shape yet: run "
            "one forward first"
        )


def _require_whole(member: Member) -> None:
    if hasattr(member.param, "placements"):  # a DTensor; its module takes long to import
        raise UnsupportedTypeError(
            f"[optim] parameter {member.name!r} is a DTensor, of which a rank has a part only: a "
            "model that fully_shard has sharded communicates by gpucomm.optim.fsdp.use instead"
        )
    if getattr(member.param, "_is_flat_param", False):  # as torch tells them, where the model is inside
        raise UnsupportedTypeError(f"[optim] parameter {member.name!r} is a FlatParameter, {_FSDP1}")


def plan_buckets(members: Sequence[Member], policy: str) -> list[list[Member]]:
    """Groups the trainable parameters into buckets, in the order in which backward completes them.

    Args:
        members: the parameters in registration order; backward makes gradients in the reverse order.
        policy: how to merge, see :func:`gpucomm.merge.plan`; it is asked once per dtype and device.

    Returns:
        The buckets, by the place of the last of their parameters in backward.

    Raises:
        UnsupportedTypeError: a trainable parameter has a dtype that is not averaged, or its gradient another.
    """
    backward = [member for member in reversed(members) if member.param.requires_grad]
    kinds: dict[Any, list[int]] = {}
    for index, (name, param) in enumerate(backward):
        if param.dtype not in _DTYPES:
            known = ", ".join(str(dtype) for dtype in _DTYPES)
            raise UnsupportedTypeError(f"[optim] parameter {name!r} must be of {known}, got {param.dtype}")
        if (wanted := getattr(param, "grad_dtype", param.dtype)) != param.dtype:  # torch has it from 2.10 on
            raise UnsupportedTypeError(
                f"[optim] parameter {name!r} is of {param.dtype} and its gradient of "
                f"{'any dtype' if wanted is None else wanted} (grad_dtype): gradients travel in their "
                "parameters' dtype"
            )
        kinds.setdefault((param.dtype, param.device), []).append(index)
    buckets: list[list[int]] = []
    for indices in kinds.values():
        sizes = [backward[index].param.numel() * backward[index].param.element_size() for index in indices]
        buckets += [[indices[place] for place in group] for group in merge.plan(policy, sizes)]
    buckets.sort(key=lambda bucket: bucket[-1])
    return [[backward[index] for index in bucket] for bucket in buckets]
