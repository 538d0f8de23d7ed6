"""What a collective costs on a model of its links: by its plan, and by the papers' closed forms.

`cost` list-schedules the very plan that would be executed. The closed forms are what the papers promise;
the tests hold the two together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from gpucomm import _core
from gpucomm.closed_forms import (
    bidirectional_exchange,
    binomial_tree,
    check_message,
    linear_pipeline,
    linear_pipeline_fused,
    linear_pipeline_middle,
    linear_pipeline_unfused,
    ring,
)
from gpucomm.comm import is_whole
from gpucomm.errors import InvalidArgumentError
from gpucomm.kinds import BY_RANK

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
        segments: how finely the message is cut, into 4096 at most.
        coding: of an algorithm that takes a codec what that costs; None: nothing, and no bytes less.

    Returns:
        Seconds, from the first rank's start to the last one's end.

    Raises:
        InvalidArgumentError: an unknown name, an algorithm without the collective, a number out of range.
    """
    coding = _checked(collective, algorithm, world, root, segments, nbytes, links=links, coding=coding)
    return _core.total_time(collective, algorithm, world, nbytes, links, root, segments, *coding)


def measured_coding(codec: str) -> Coding:
    """What a codec costs here, measured now on one core; of "fixed" in its narrowest integers.

    Args:
        codec: a spec such as "int8".

    Returns:
        What `cost` takes as `coding`.

    Raises:
        InvalidArgumentError: the codec is unknown, or no text.
    """
    if not isinstance(codec, str):
        raise InvalidArgumentError(f"codec must be a spec such as 'int8', got {codec!r}")
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
        pipeline) to a minute (a ring, which has the most messages).

    Raises:
        InvalidArgumentError: as `cost`.
    """
    if not isinstance(worlds, Iterable):
        raise InvalidArgumentError(f"worlds must be numbers of ranks, such as [4, 8], got {worlds!r}")
    points = []
    for world in worlds:
        m = 1 if segments is None else segments
        if segments is None and str(algorithm).startswith("linear_pipeline"):
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
    """Every rank's plan, in place, and when each of its steps runs.

    Args:
        collective: as of `cost`.
        algorithm: as of `cost`.
        nbytes: as of `cost`.
        links: the model of the links.
        world: number of ranks.
        root: as of `cost`.
        segments: as of `cost`.
        coding: as of `cost`.
        additive: of an algorithm that takes a codec, whether that one adds coded messages.

    Returns:
        The plans by rank, and the schedule of all of them.

    Raises:
        InvalidArgumentError: as `cost`.
    """
    coding = _checked(collective, algorithm, world, root, segments, nbytes, links=links, coding=coding)
    _core.build_plan(collective, algorithm, world, 0, root, segments)  # says what is wrong, also with world=0
    plans = _core.build_plans(
        collective, algorithm, world, root, segments, nodes=links.nodes, additive=additive
    )
    whole = nbytes // world * world if collective in BY_RANK else nbytes
    offsets = plans[0].layout(whole, _ALIGN_BYTES)
    return plans, _core.schedule(plans, offsets, links, *coding)


def _checked(collective: Any, algorithm: Any, *numbers: Any, links: Any, coding: Any) -> Coding:
    """What coding costs, in a call whose arguments have the right types; the core checks their ranges."""
    for name, value in (("collective", collective), ("algorithm", algorithm)):
        if not isinstance(value, str):
            raise InvalidArgumentError(f"{name} must be a name, got {value!r}")
    *others, nbytes = numbers
    for name, value in zip(("world", "root", "segments"), others, strict=True):
        if not is_whole(value) or not -(2**31) <= value < 2**31:
            raise InvalidArgumentError(f"{name} must be a whole number of 32 bits, got {value!r}")
    if others[-1] > MOST_SEGMENTS:
        raise InvalidArgumentError(f"segments must be at most {MOST_SEGMENTS}, got {others[-1]}")
    check_message(nbytes, links)
    given = _FREE if coding is None else coding
    if not (isinstance(given, tuple) and len(given) == 3 and all(map(_is_figure, given))):
        raise InvalidArgumentError(f"coding must be a Coding of finite figures from 0 up, got {coding!r}")
    return Coding(*given)


def _is_figure(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < math.inf


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

    Raises:
        InvalidArgumentError: world is less than 1, nbytes is negative, an argument of another type, or no
            linear pipeline of this collective.
    """
    if not is_whole(world) or world < 1:
        raise InvalidArgumentError(f"world must be a whole number of at least 1, got {world!r}")
    check_message(nbytes, links)
    known = [name for name, a in _core.algorithms().items() if name.startswith("linear_pipeline")]
    if algorithm not in known or collective not in _core.algorithms()[algorithm]["collectives"]:
        raise InvalidArgumentError(
            f"algorithm must be a linear pipeline ({', '.join(known)}) that offers the collective, got "
            f"{algorithm!r} for {collective!r}"
        )
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
