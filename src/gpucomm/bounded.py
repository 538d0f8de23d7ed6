"""all_reduce with a promise: the error stays below what was asked for, by whatever codec is cheapest then."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpucomm import _core
from gpucomm.error_bounds import ROUNDING, Sizes, bound_of, folding
from gpucomm.errors import Error, InvalidArgumentError, MismatchError
from gpucomm.turns import turn

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["Bounded", "all_reduce"]

_SUMS = ("sum", "mean", "premul_sum")


@dataclass(frozen=True)
class Bounded:
    """What an all_reduce with `max_rel_err` did.

    Errors are norms of (result - exact sum), relative to the sum of the norms of all ranks' x; what adding up
    rounds is in them.

    Attributes:
        result: x or out, with the result.
        codec: the spec of the codec that was taken; None: elements travelled as they are.
        algorithm: what carried it coded; "auto" where elements travelled as they are.
        bound: what the error cannot exceed, known before anything was sent. Above what was asked for only
            where elements travelled as they are, and adding up alone may round more; inf where a sum, of a
            mean too, may leave the dtype.
        error: what it is at most, from what the ranks' encodings lost.
        bytes_sent: by this rank, in all calls that this took.
    """

    result: Any
    codec: str | None
    algorithm: str
    bound: float
    error: float
    bytes_sent: int


class _Choice(NamedTuple):
    codec: str | None
    algorithm: str
    segments: int
    bound: float


def all_reduce(
    comm: Communicator,
    x: Any,
    max_rel_err: float,
    *,
    op: str = "sum",
    out: Any = None,
    scale: float | None = None,
    codec: str | None = None,
    timeout: float | None = None,
    stream: int | None = None,
    **others: Any,
) -> Bounded:
    """Reduces x over all ranks with an error of at most `max_rel_err`; see `Communicator.all_reduce`.

    Before anything is sent the ranks agree on their norms, in one small all-reduce; from these and the
    codecs' bounds follows what each would lose at most. The exact result is never needed.

    On a device, whose links are not measured, the cheapest is what makes the fewest bytes of x. The host
    waits for x's norms and, where something was coded, for what was lost; else for the result only the
    stream waits.

    Args:
        comm: the ranks.
        x: float32, float16 or bfloat16.
        max_rel_err: above 0.
        op: sum, mean or premul_sum.
        out: as in `Communicator.all_reduce`.
        scale: as in `Communicator.all_reduce`.
        codec: the only one to consider; None: several.
        timeout: seconds for each call.
        stream: as in `Communicator.all_reduce`.
        others: must be left at their defaults.

    Raises:
        InvalidArgumentError: max_rel_err is not above 0, or another argument does not go with it.
        MismatchError: the ranks do not say the same max_rel_err and codec, or have arrays of other dtypes or
            counts; on all of them, before x is sent, and the communicator stays open.
        Error: as `Communicator.all_reduce`.
    """
    _check(comm, max_rel_err, op, others)
    if isinstance(x, (list, tuple)):
        raise InvalidArgumentError(
            f"max_rel_err is for one array, not for a list (rank {comm.rank} of {comm.world})"
        )
    specs = _registered() if codec is None else (_spec(comm, codec),)
    how: dict[str, Any] = {"timeout": timeout, "stream": stream}
    with turn(comm), _core.Meter() as meter:
        sizes = _agree(comm, x, scale, specs, max_rel_err, how)
        codecs = list(_codecs(specs, codec is None, max_rel_err, sizes, comm.world))
        choice = _cheapest(comm, x, max_rel_err, codecs, sizes, timeout)
        lost = choice.bound
        if choice.codec is None:
            comm.all_reduce(x, op, out=out, scale=scale, **how)
        else:
            what = op, out, scale, choice.algorithm, choice.segments, timeout, choice.codec, stream
            mine = np.array([math.sqrt(comm._lossy_all_reduce(x, *what))])
            coded = float(_summed(comm, mine, timeout)[0]) / sizes.norm * (1 + sizes.rounding)
            lost = min(lost, coded + (1 + choice.bound) * folding(sizes))  # both are bounds
    result = x if out is None else out
    return Bounded(result, choice.codec, choice.algorithm, choice.bound, lost, meter.bytes_sent)


def _spec(comm: Communicator, codec: str) -> str:
    try:
        return _core.Codec(codec).spec
    except Error as error:
        raise type(error)(f"{error} (rank {comm.rank} of {comm.world})") from None


@lru_cache
def _registered() -> tuple[str, ...]:
    """Tried where none is named; and fixed, with a step that the bound allows."""
    return tuple(spec for about in _core.codecs().values() for spec in about["bounded"])


@lru_cache
def _blocks() -> list[int]:
    """Of all codecs, whichever is asked for: what the ranks agree on is as long on all of them."""
    examples = (spec for about in _core.codecs().values() for spec in about["examples"])
    return sorted({1, *(int(_core.Codec(spec).traits["block"]) for spec in examples)})


def _check(comm: Communicator, max_rel_err: float, op: str, others: dict[str, Any]) -> None:
    where = f"(rank {comm.rank} of {comm.world})"
    if not 0 < max_rel_err < math.inf:
        raise InvalidArgumentError(f"max_rel_err must be a number above 0, got {max_rel_err!r} {where}")
    if op not in _SUMS:
        raise InvalidArgumentError(f"max_rel_err is for op {', '.join(_SUMS)}, got {op!r} {where}")
    defaults = {"algorithm": "auto", "segments": None, "async_op": False, "error": None}
    for name, value in others.items():
        if value is not None and (name == "error" or value != defaults[name]):
            raise InvalidArgumentError(f"{name} does not go with max_rel_err {where}")


def _summed(comm: Communicator, values: Any, timeout: float | None) -> Any:
    return comm.all_reduce(values, algorithm="one_shot", segments=1, timeout=timeout)


def _agree(
    comm: Communicator, x: Any, scale: float | None, specs: tuple[str, ...], most: float, how: dict[str, Any]
) -> Sizes:
    blocks = _blocks()
    by = abs(scale) if scale is not None else 1.0
    dtype, count, *found = comm._norms(x, blocks, **how)
    said = f"max_rel_err={most!r} for {count} elements of {dtype}, and codec {' or '.join(specs)}"
    mine = _digest(said)
    with comm._parts_of("max_rel_err"):
        summed = _summed(comm, np.concatenate([np.array(found) * by, mine]), how["timeout"])
    if (summed[-len(mine) :] != comm.world * mine).any():
        raise MismatchError(f"the ranks do not say the same: rank {comm.rank} of {comm.world} has {said}")
    norm, largest, *of_blocks = summed[: -len(mine)].tolist()
    # A sum of n positive terms is off by at most n 2^-53 of it, in whatever order; its root by half of that.
    rounding = (count + 2 * comm.world + 16) * 2.0**-52
    factor = 0.0
    if scale is not None:
        factor = 2.0**-24
        largest *= (1 + factor) * (1 + ROUNDING[dtype])  # what is sent is a product, rounded
    folds = comm.world if comm.world > 1 else int(by != 1)
    norms = dict(zip(blocks, of_blocks, strict=True))
    return Sizes(count, dtype, norm, largest, norms, rounding, factor, folds)


def _digest(text: str) -> Any:
    """Numbers whose sums over the ranks are exact, and as many times a rank's own only where all are alike.

    For then their variance, the mean of the squares less the square of the mean, is 0.
    """
    bits = np.frombuffer(hashlib.blake2b(text.encode(), digest_size=6).digest(), np.uint16).astype(float)
    return np.concatenate([bits, bits**2])


def _codecs(
    specs: tuple[str, ...], fixed: bool, most: float, sizes: Sizes, world: int
) -> Iterator[_core.Codec]:
    """Those that can carry such arrays."""
    if world == 1 or not (0 < sizes.norm < math.inf):
        return
    if fixed:
        # Half a step, a power of two, so that calls alike have few specs.
        eps = most * sizes.norm / (world * math.sqrt(sizes.count))
        eps = 2.0 ** (math.frexp(0.999 * eps)[1] - 1)
        specs = (*specs, f"fixed:{eps!r}")
    for spec in specs:
        with contextlib.suppress(InvalidArgumentError):  # no width or step of fixed fits
            codec = _core.Codec(spec)
            if codec.takes(sizes.dtype):
                yield codec.agreed(sizes.largest, world) if codec.traits["needs_maximum"] else codec


@lru_cache
def _bounded_algorithms() -> frozenset[str]:
    """Those whose encodings are counted, once each."""
    return frozenset(n for n, about in _core.algorithms().items() if about["coded"] and not about["repeats"])


def _cheapest(
    comm: Communicator,
    x: Any,
    most: float,
    codecs: Sequence[_core.Codec],
    sizes: Sizes,
    timeout: float | None,
) -> _Choice:
    """Of what keeps to the bound, the same on every rank: sending elements as they are always does."""
    if not codecs:
        return _Choice(None, "auto", 0, folding(sizes))
    least = min(cost for *_, cost in comm._predict(x, None, timeout))
    telling = comm._agreement_time()  # what was lost
    coded = [
        (cost, codec, algorithm, segments)
        for codec in codecs
        for algorithm, segments, cost in comm._predict(x, codec.spec, timeout)
        if cost + telling < least and algorithm in _bounded_algorithms()
    ]
    for _, codec, algorithm, segments in sorted(coded, key=lambda choice: choice[0]):
        bound = bound_of(codec, algorithm, comm.world, sizes)
        if bound <= most:
            return _Choice(codec.spec, algorithm, segments, bound)
    return _Choice(None, "auto", 0, folding(sizes))
