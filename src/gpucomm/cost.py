"""What a collective costs on a model of its links: by its plan, and by the papers' closed forms.

`cost` list-schedules the very plan that would be executed. The closed forms are what the papers promise;
the tests hold the two together. Where a form does not name the latency lambda, it is for lambda = 0.
Symbols as in the papers: p ranks, n bytes, m segments, alpha seconds a message, beta seconds a byte.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError

__all__ = [
    "Coding",
    "Point",
    "best_segments",
    "bidirectional_exchange",
    "binomial_tree",
    "cost",
    "linear_pipeline",
    "linear_pipeline_fused",
    "linear_pipeline_middle",
    "linear_pipeline_unfused",
    "measured_coding",
    "plans_and_schedule",
    "ring",
    "simulate",
]

MOST_SEGMENTS = 4096  # what a communicator takes
MOST_RANKS = 1024  # of whose plans every step is listed, or every candidate weighed, in seconds
_ALIGN_BYTES = 64  # cuts fall on cache lines, as in a communicator
_BY_RANK = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")


class Coding(NamedTuple):
    """What a codec costs: coded bytes for a byte, and seconds to encode and to decode a byte of elements.

    In a fold `decode` counts together with the addition, unless the links have a gamma.
    """

    ratio: float
    encode: float
    decode: float


_FREE = Coding(1.0, 0.0, 0.0)


class Point(NamedTuple):
    """One world of a simulation: its ranks, the segments that were taken, and the seconds of a call."""

    world: int
    segments: int
    seconds: float


def cost(
    collective: str,
    algorithm: str,
    *,
    world: int,
    nbytes: int,
    links: _core.Links,
    root: int = 0,
    segments: int = 1,
    coding: Coding | None = None,
) -> float:
    """The time of one call on a model of the links.

    Args:
        collective: all_reduce, reduce, broadcast, all_gather, reduce_scatter, gather, scatter or all_to_all.
        algorithm: a name of `gpucomm.algorithms()`.
        world: number of ranks.
        nbytes: the whole message; where it has a part for every rank, that of all parts together, of which
            the largest multiple of `world` is taken.
        links: the model of the links.
        root: the rank that gets (reduce, gather) or gives (broadcast, scatter) the message.
        segments: how finely the message is cut.
        coding: of an algorithm that takes a codec what that costs; None: nothing, and no bytes less.

    Returns:
        Seconds, from the first rank's start to the last one's end.

    Raises:
        InvalidArgumentError: an unknown name, an algorithm without the collective, a number out of range.
    """
    _check(nbytes)
    return _core.total_time(collective, algorithm, world, nbytes, links, root, segments, *(coding or _FREE))


def measured_coding(codec: str) -> Coding:
    """What a codec costs here, measured now on one core; of "fixed" in its narrowest integers.

    Raises:
        InvalidArgumentError: the codec is unknown.
    """
    made = _core.Codec(codec)
    return Coding(made.bytes_a_byte(), *made.speed())


def simulate(
    collective: str,
    algorithm: str,
    *,
    worlds: Iterable[int],
    nbytes: int,
    links: _core.Links,
    root: int = 0,
    segments: int | None = None,
) -> list[Point]:
    """The time of one call in worlds of many sizes, to thousands of ranks; see `cost`.

    Args:
        collective: as of `cost`.
        algorithm: as of `cost`.
        worlds: numbers of ranks.
        nbytes: the whole message, the same in every world.
        links: the model of the links.
        root: as of `cost`.
        segments: how finely the message is cut; None for the best of each world (`best_segments`) where the
            algorithm is a linear pipeline, 1 elsewhere.

    Returns:
        A point for each world, in the order given. 2048 ranks take from a tenth of a second (a linear
        pipeline) to some seconds (a ring, which has the most messages).

    Raises:
        InvalidArgumentError: as `cost`.
    """
    points = []
    for world in worlds:
        m = segments or 1
        if segments is None and algorithm.startswith("linear_pipeline"):
            m = best_segments(world, nbytes, links, collective, algorithm)
        seconds = cost(collective, algorithm, world=world, nbytes=nbytes, links=links, root=root, segments=m)
        points.append(Point(world, m, seconds))
    return points


def plans_and_schedule(
    collective: str,
    algorithm: str,
    nbytes: int,
    links: _core.Links,
    *,
    world: int,
    root: int = 0,
    segments: int = 1,
    coding: Coding | None = None,
    additive: bool = False,
) -> tuple[list[_core.Plan], _core.Schedule]:
    """Every rank's plan, in place, and when each of its steps runs; arguments as in `cost`.

    `additive`: of an algorithm that takes a codec, whether that one adds coded messages.
    """
    _check(nbytes)
    _core.build_plan(collective, algorithm, world, 0, root, segments)  # says what is wrong, also with world=0
    plans = _core.build_plans(
        collective, algorithm, world, root, segments, nodes=links.nodes, additive=additive
    )
    whole = nbytes // world * world if collective in _BY_RANK else nbytes
    offsets = plans[0].layout(whole, _ALIGN_BYTES)
    return plans, _core.schedule(plans, offsets, links, *(coding or _FREE))


def _check(nbytes: int) -> None:
    if nbytes < 0:
        raise InvalidArgumentError(f"nbytes={nbytes} must not be negative")


def best_segments(
    world: int,
    nbytes: int,
    links: _core.Links,
    collective: str = "broadcast",
    algorithm: str = "linear_pipeline",
) -> int:
    """How many segments are best for a linear pipeline: sqrt(f n beta / alpha).

    f counts the segments that fill the pipeline: p - 2 along the chain, 2p - 3 there and back at once, and
    2 floor(p/2) - 1 where its ends meet in the middle. Where f segments fill it, m of them take
    (f + m)(alpha + n/m beta), least at that m (arXiv:1611.04255).

    Args:
        world: number of ranks.
        nbytes: the whole message.
        links: the model of the links.
        collective: broadcast, reduce or all_reduce.
        algorithm: the name of a linear pipeline; an unfused one is as a broadcast.

    Returns:
        A whole number from 1 to 4096.
    """
    fill = max(0, _fill(collective, algorithm, world))
    beta = max(links.betas, default=links.beta)
    if not fill * nbytes * beta:
        return 1
    if not links.alpha:
        return MOST_SEGMENTS
    return min(MOST_SEGMENTS, max(1, round(math.sqrt(fill * nbytes * beta / links.alpha))))


def _fill(collective: str, algorithm: str, world: int) -> int:
    if collective != "all_reduce" or algorithm == "linear_pipeline_unfused":
        return world - 2
    return 2 * (world // 2) - 1 if algorithm == "linear_pipeline_middle" else 2 * world - 3


def linear_pipeline(p: int, m: int, nbytes: int, links: _core.Links) -> float:
    """Broadcast or reduce along a chain: (p-2+m)(alpha + n/m beta) + (p-1) lambda, for any lambda and p > 1.

    Source: Linear Pipelining, arXiv:1611.04255, whose table counts one step more, p-1+m.
    """
    return float((p - 2 + m) * (links.alpha + nbytes / m * links.beta) + (p - 1) * links.lambda_)


def linear_pipeline_fused(p: int, m: int, nbytes: int, links: _core.Links) -> float:
    """All-reduce down a chain and back at once: (2p-3+m)(alpha + n/m beta); on links="chain" only.

    Each neighbour pair needs its own full-duplex link. Source: derived from arXiv:1611.04255.
    """
    return float((2 * p - 3 + m) * (links.alpha + nbytes / m * links.beta))


def linear_pipeline_middle(p: int, m: int, nbytes: int, links: _core.Links) -> float:
    """All-reduce from both ends to the middle and back at once: (2h-1+m)(alpha + n/m beta), h = floor(p/2).

    On links="chain" only, for p > 1, as `linear_pipeline_fused`.
    """
    return float((2 * (p // 2) - 1 + m) * (links.alpha + nbytes / m * links.beta))


def linear_pipeline_unfused(p: int, m: int, nbytes: int, links: _core.Links) -> float:
    """All-reduce as a whole reduce, then a whole broadcast: twice the chain. Source: arXiv:1611.04255."""
    return 2 * linear_pipeline(p, m, nbytes, links)


def ring(p: int, nbytes: int, links: _core.Links) -> float:
    """All-reduce round a ring: 2(p-1)(alpha + n/p beta), one segment. Source: Patarasuk & Yuan 2009."""
    return float(2 * (p - 1) * (links.alpha + nbytes / p * links.beta))


def binomial_tree(p: int, nbytes: int, links: _core.Links) -> float:
    """Broadcast or reduce over a tree (MST): ceil(log2 p)(alpha + n beta). Source: arXiv:1611.04255."""
    return float((p - 1).bit_length() * (links.alpha + nbytes * links.beta))


def bidirectional_exchange(p: int, nbytes: int, links: _core.Links) -> float:
    """All-reduce by halving and doubling (BE): 2 log2 p alpha + 2(p-1)/p n beta, on links="switch".

    For powers of two only. Source: arXiv:1611.04255; Rabenseifner 2004.
    """
    return float(2 * math.log2(p) * links.alpha + 2 * (p - 1) / p * nbytes * links.beta)
