"""What torch.distributed asks of a call, in the communicator's words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch.distributed as dist

from gpucomm.errors import InvalidArgumentError, UnsupportedTypeError
from gpucomm.exchange import GradientCodec
from gpucomm.optim.process_group.packing import REDUCIBLE

__all__ = ["is_async", "keywords", "reduction", "root_of"]

_SUM = dist.ReduceOp.SUM
_OPS = {
    _SUM: "sum",
    dist.ReduceOp.AVG: "mean",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
    dist.ReduceOp.PREMUL_SUM: "premul_sum",
}
_NAMES = {op.value: name for op, name in _OPS.items()}  # to hash a number is much quicker
_SUMS = ("sum", "mean", "premul_sum")


def is_async(opts: Any) -> bool:
    """Whether the caller waits for a handle itself; C++ always does."""
    return getattr(opts, "asyncOp", True)


def root_of(opts: Any) -> int:
    """The root's rank in the group, of options or of what stands in their place; None: 0."""
    return int(getattr(opts, "rootRank", opts) or 0)


def reduction(opts: Any, x: Any) -> dict[str, Any]:
    """The keywords op and, where that needs one, scale.

    Args:
        opts: of the call, or a ReduceOp; None: a sum.
        x: a tensor that is to be reduced.

    Raises:
        InvalidArgumentError: the communicator has no such reduction.
        UnsupportedTypeError: it is not defined for the tensor's dtype.
    """
    given = getattr(opts, "reduceOp", opts)
    kind = _SUM if given is None else getattr(given, "op", given)
    op = _NAMES.get(kind.value)
    if op is None:
        raise InvalidArgumentError(f"{kind} must be one of {', '.join(str(known) for known in _OPS)}")
    if x.dtype not in REDUCIBLE and not (x.is_complex() and op in _SUMS):
        raise UnsupportedTypeError(f"op {op!r} is not defined for {x.dtype} tensors")
    return {"op": op, "scale": float(given.factor)} if op == "premul_sum" else {"op": op}


def keywords(choice: Mapping[str, Any], x: Any, opts: Any, op: str = "sum") -> dict[str, Any]:
    """How a call travels: what was chosen for it, if its codec can carry it, and the call's own timeout.

    Args:
        choice: of this collective, as in Options.
        x: what is sent, as the communicator gets it.
        opts: of the call.
        op: of a reduction; a codec carries sums only.
    """
    codec = choice.get("codec")
    taken = codec is None or (op in _SUMS and _carries(codec, x.dtype))
    how = dict(choice) if taken else {}
    timeout = getattr(opts, "timeout", None)
    seconds = timeout.total_seconds() if timeout is not None else 0.0
    if seconds > 0:  # else unset
        how["timeout"] = seconds
    return how


@lru_cache(maxsize=256)
def _carries(codec: str, dtype: Any) -> bool:
    return bool(dtype.is_floating_point) and GradientCodec(codec).takes(dtype)
