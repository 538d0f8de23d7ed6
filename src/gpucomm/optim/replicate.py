"""Gives every rank the tensors of one rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from gpucomm.errors import UnsupportedTypeError

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["broadcast_tensors", "require_plain"]

_MESSAGE_BYTES = 64 * 2**20


def _messages(tensors: Iterable[Any]) -> Iterator[list[Any]]:
    """Cuts a list of tensors into messages of one device and bounded size: no large model is held twice."""
    message: list[Any] = []
    size = 0
    for tensor in tensors:
        if message and (tensor.device != message[0].device or size + tensor.nbytes > _MESSAGE_BYTES):
            yield message
            message, size = [], 0
        message.append(tensor)
        size += tensor.nbytes
    if message:
        yield message


def _as_bytes(tensor: Any) -> Any:
    # resolve: the memory of a view of conj() holds other bits than its elements.
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
    # as_strided: one element alone is contiguous with any stride, but has no view as bytes then.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)


def require_plain(tensors: Iterable[Any]) -> None:
    """Checks, before anything is sent, that :func:`broadcast_tensors` takes these.

    Raises:
        UnsupportedTypeError: one is sparse, on the meta device, or its elements share memory, as expand()
            makes them.
    """
    for tensor in tensors:
        if not tensor.numel():
            continue
        shape = tuple(tensor.shape)
        if tensor.is_meta:
            raise UnsupportedTypeError(
                f"[optim] a parameter or buffer of shape {shape} and {tensor.dtype} is on the meta device, "
                "where nothing is: materialise the model first, by to_empty() and its initialisation"
            )
        if tensor.layout is not torch.strided:
            raise UnsupportedTypeError(
                f"[optim] a parameter or buffer of shape {shape} is {tensor.layout}, but only dense ones "
                "travel"
            )
        if any(size > 1 and not stride for size, stride in zip(shape, tensor.stride(), strict=True)):
            raise UnsupportedTypeError(
                f"[optim] elements of a parameter or buffer of shape {shape} share memory, as expand() makes "
                "them: take a contiguous() one"
            )


def broadcast_tensors(comm: Communicator, tensors: Iterable[Any], root: int = 0) -> None:
    """Overwrites tensors by those of the root, few calls for many tensors.

    They travel as bytes: any dtype, every dtype in one message, bit for bit, whatever their strides.

    Args:
        comm: the ranks.
        tensors: the same shapes and dtypes on all ranks, in the same order; as require_plain() has them.
        root: the rank whose tensors all get.

    Raises:
        UnsupportedTypeError: the communicator does not reach the tensors' device.
    """
    tensors = [tensor for tensor in tensors if tensor.numel()]
    with torch.no_grad():
        for message in _messages(tensors):
            flat = torch.cat([_as_bytes(tensor) for tensor in message])
            comm.broadcast(flat, root=root)
            for tensor, piece in zip(message, flat.split([tensor.nbytes for tensor in message]), strict=True):
                # clone: a piece may begin where its dtype could not.
                tensor.copy_(piece.clone().view(tensor.dtype).view(tensor.shape))
