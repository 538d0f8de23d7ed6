"""Tensors of any layout and dtype as arrays that the communicator takes: contiguous, of a dtype it knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gpucomm.errors import InvalidArgumentError

__all__ = ["REDUCIBLE", "Copies", "counts", "joined", "source", "splits", "spread", "target"]

Copies = list[tuple[Any, Any]]  # (to, from), to be done at the end

REDUCIBLE = frozenset(
    [
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
        *(torch.uint64, torch.uint32, torch.uint16),  # by some operations: the communicator says which
    ]
)


def source(x: Any) -> Any:
    """What the communicator reads.

    Args:
        x: a tensor.

    Returns:
        x, or a copy; complex numbers as pairs, dtypes that cannot be reduced as bytes.
    """
    return x if _is_plain(x) else _view(_resolved(x))


def target(x: Any, copies: Copies, keep: bool = False) -> Any:
    """What the communicator writes.

    Args:
        x: a tensor.
        copies: where that is not x's memory, gets the pair.
        keep: whether the communicator reads it too.

    Returns:
        x, or a view of it as `source` has, or of new memory.
    """
    if _is_plain(x):
        return x
    x = x.detach()
    if not x.is_contiguous() or x.is_conj() or x.is_neg():
        made = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if keep:
            made.copy_(x)
        copies.append((x, made))
        x = made
    return _view(x)


def joined(xs: Sequence[Any]) -> Any:
    """Tensors of one dtype one behind the other, as `source` has them."""
    return source(torch.cat([x.detach().reshape(-1) for x in xs]))


def spread(xs: Sequence[Any], copies: Copies) -> Any:
    """What the communicator writes for tensors of one dtype that are to lie one behind the other.

    Args:
        xs: the tensors.
        copies: gets the pairs.
    """
    sizes = [x.numel() for x in xs]
    flat = torch.empty(sum(sizes), dtype=xs[0].dtype, device=xs[0].device)
    copies.extend((x.detach(), part.view(x.shape)) for x, part in zip(xs, flat.split(sizes), strict=True))
    return _view(flat)


def counts(sizes: Sequence[int], x: Any, sent: Any) -> list[int]:
    """How many elements of what the communicator gets belong to each rank.

    Args:
        sizes: how many elements of x do.
        x: a tensor.
        sent: what the communicator gets for it.
    """
    return [size * x.element_size() // sent.element_size() for size in sizes]


def splits(x: Any, shares: Sequence[int], world: int) -> list[int]:
    """How many elements of a tensor belong to each rank.

    Args:
        x: a tensor.
        shares: how much of its first dimension each gets; empty: equal parts.
        world: how many ranks there are.

    Raises:
        InvalidArgumentError: that does not make up x.
    """
    extent = x.shape[0] if x.dim() else 1
    rows = list(shares) or [extent // world] * world
    if sum(rows) != extent or len(rows) != world:
        cut = f"as {rows}" if shares else "equally"
        raise InvalidArgumentError(f"first dimension {extent} cannot be cut {cut} for {world} ranks")
    return [count * x.shape[1:].numel() for count in rows]


def _is_plain(x: Any) -> bool:
    return x.dtype in REDUCIBLE and x.is_contiguous() and not x.is_neg()


def _resolved(x: Any) -> Any:
    """Without autograd, lazy conjugation and strides; x's memory where it has none of these."""
    return x.detach().resolve_conj().resolve_neg().contiguous()


def _view(x: Any) -> Any:
    """Of a contiguous tensor."""
    if x.is_complex():
        return torch.view_as_real(x)
    return x if x.dtype in REDUCIBLE else x.reshape(-1).view(torch.uint8)
