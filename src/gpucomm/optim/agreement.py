"""Compares what the ranks are about to do, before they do it, and tells them of what one refuses."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucomm.errors import (
    Error,
    InvalidArgumentError,
    MismatchError,
    UnavailableError,
    UnsupportedTypeError,
)
from gpucomm.optim.members import Member

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["next_number", "require_communicator", "require_same_layout", "telling"]

_DIGEST_BYTES = 32


def _record(
    members: Sequence[Member],
    buckets: Sequence[Sequence[Member]],
    settings: str,
    buffers: Sequence[Member],
    groups: Sequence[Mapping[str, Any]],
) -> bytes:
    trainer = {id(param): number for number, group in enumerate(groups) for param in group["params"]}
    rows = [
        (
            name,
            str(param.dtype),
            tuple(param.shape),
            param.stride(),
            param.requires_grad,
            param.device.type,
            trainer.get(id(param)),
        )
        for name, param in members
    ]
    kept = [(name, str(buffer.dtype), tuple(buffer.shape)) for name, buffer in buffers]
    layout = [[member.name for member in bucket] for bucket in buckets]
    told = repr((settings, rows, kept, layout)).encode()
    digest = hashlib.blake2b(told, digest_size=_DIGEST_BYTES).digest()
    elements = sum(member.param.numel() for member in members)
    return digest + np.array([len(buckets), len(members), elements], np.int64).tobytes()


def _in_words(rank: int, record: bytes) -> str:
    buckets, tensors, elements = np.frombuffer(record[_DIGEST_BYTES:], np.int64)
    return f"rank {rank} has {tensors} parameters of {elements} elements in {buckets} buckets"


def next_number(comm: Communicator) -> int:
    """Counts one more who labels its messages on a communicator: alike on all ranks, from 1."""
    number: int = vars(comm).get("_optimizers", 0) + 1
    vars(comm)["_optimizers"] = number
    return number


def require_communicator(comm: object, who: str) -> None:
    """Raises InvalidArgumentError, by who takes it, unless this is a communicator, or what acts as one."""
    if not hasattr(comm, "world"):
        raise InvalidArgumentError(f"[{who}] comm must be a gpucomm.Communicator, got {type(comm).__name__}")


@contextmanager
def telling(comm: Communicator, call: str) -> Iterator[None]:
    """Tells the other ranks, who may wait for this one in what `call` sends, of what this one alone meets.

    Args:
        comm: the ranks.
        call: what they all call, for the texts.

    Raises:
        InvalidArgumentError, UnavailableError, UnsupportedTypeError: as in the block, with this rank.
        Exception: any other, as in the block: of torch or of the user's.
    """
    try:
        yield
    except (InvalidArgumentError, UnavailableError, UnsupportedTypeError) as error:
        if not hasattr(comm, "_refused"):  # what was bad is the communicator
            raise
        raise comm._refused(call, error) from error.__cause__
    except Error:  # all ranks know of it
        raise
    except Exception as error:
        if hasattr(comm, "_refuse"):
            comm._refuse(call, f"{type(error).__name__}: {error}")
        raise


def require_same_layout(
    comm: Communicator,
    members: Sequence[Member],
    buckets: Sequence[Sequence[Member]],
    settings: str,
    buffers: Sequence[Member] = (),
    groups: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Checks that all ranks wrap the same model in the same way, by one small all-gather.

    Args:
        comm: the ranks.
        members: this rank's parameters, frozen ones too.
        buckets: the trainable ones, bucket by bucket.
        settings: everything else that must be the same, as text.
        buffers: the model's, where they are sent too.
        groups: an optimizer's, which must train the same parameters each.

    Raises:
        MismatchError: on every rank, naming those that differ from most.
    """
    mine = _record(members, buckets, settings, buffers, groups)
    gathered = comm.all_gather(np.frombuffer(mine, np.uint8).copy()).tobytes()
    records = [gathered[begin : begin + len(mine)] for begin in range(0, len(gathered), len(mine))]
    common, _ = Counter(records).most_common(1)[0]
    odd = [rank for rank, record in enumerate(records) if record != common]
    if odd:
        # most_common keeps the order of first sight, so that of two equal parties rank 0's is the measure.
        pair = [_in_words(odd[0], records[odd[0]]), _in_words(records.index(common), common)]
        raise MismatchError(
            "[optim] all ranks must wrap the same parameters (names, shapes, dtypes, strides, frozen or not, "
            "kind of device, group) and buffers (names, shapes, dtypes) with the same merge, exchange, "
            "algorithm and segments, but "
            f"rank {', '.join(map(str, odd))} differs: {' and '.join(pair)}, "
            f"wrapping with {settings} here (rank {comm.rank} of {comm.world})"
        )
