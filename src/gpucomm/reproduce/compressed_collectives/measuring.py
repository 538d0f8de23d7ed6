"""Times of coded and dense collectives at a point, and of the codec there, in turns on all ranks at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from gpucomm import _core, cost
from gpucomm.bench.auto_cell import fixed
from gpucomm.comm import Communicator
from gpucomm.reproduce.compressed_collectives.points import (
    FIRST_RATE,
    HEADLINE_C,
    Point,
    headline,
    headline_rate,
    next_rate,
    off_headline,
    points,
)
from gpucomm.reproduce.run import Run, Span, last_ends, start_together

__all__ = [
    "CODED",
    "COLLECTIVES",
    "PER_HOP",
    "TWO_SHOT",
    "Measured",
    "Way",
    "all_measured",
    "measure",
    "seconds",
]

_HOPELESS, _MOST_DENSE = 1.3, 3  # times the fastest's time; how many dense choices are measured in earnest
_SUSPECT = 1.1
_WORLDS = 3  # in which c is tried to be as wanted
_WARM = 2  # rounds before those that count: a first one has fresh memory, and takes up to twice as long


class Way(NamedTuple):
    """An algorithm, into how many segments it cuts (0: to be found), and whether its messages are coded."""

    algorithm: str
    segments: int = 1
    coded: bool = False

    def __str__(self) -> str:
        return self.algorithm + (f", {self.segments} segments" if self.segments > 1 else "")


COLLECTIVES = ("all_gather", "reduce_scatter")
_OURS, PER_HOP, TWO_SHOT = Way("coded_ring", 0, True), Way("ring_per_hop", 1, True), Way("two_shot", 1, True)
CODED = (_OURS, PER_HOP, TWO_SHOT)
_RING = Way("ring")
_LEAST_PIECE, _MOST_SEGMENTS = 16 << 10, 64


class Measured(NamedTuple):
    """Seconds of each repeat at a point.

    Attributes:
        point: where.
        collective: which.
        coding: to encode and decode a part, where all ranks do so at once.
        ways: of each way: a call.
        hosts: what connects them, where the ranks are hosts; empty: emulated links.
    """

    point: Point
    collective: str
    coding: list[float]
    ways: dict[Way, list[float]]
    hosts: str = ""

    @property
    def ours(self) -> Way:
        """The collective-level algorithm."""
        return next(way for way in self.ways if way.algorithm == _OURS.algorithm)

    @property
    def dense(self) -> Way:
        """The fastest dense choice."""
        return min((way for way in self.ways if not way.coded), key=lambda way: median(self.ways[way]))

    @property
    def c(self) -> float:
        """What coding adds to a hop that encodes, sends and decodes in turns, over its time on the wire."""
        hops = self.point.ranks - 1
        return median(self.ways[PER_HOP]) / hops / self.point.wire_s - 1

    @property
    def c_at_once(self) -> float:
        """The same of the codec alone, all ranks at the same moment: more, where they share cores."""
        return median(self.coding) / self.point.wire_s

    def model_s(self, way: Way) -> float:
        """What the cost model says, with a codec whose time on a hop is c."""
        point = self.point
        coding = point.coding(max(0.0, self.c) * point.wire_s)
        return cost.cost(
            self.collective,
            way.algorithm,
            world=point.ranks,
            nbytes=point.cell.nbytes,
            links=point.cell.model,
            segments=way.segments,
            coding=coding if way.coded else None,
        )


def all_measured(run: Run, collective: str) -> list[Measured]:
    """All times at the points of a collective, the headline first, measured once a run."""
    return run.once(collective, lambda: _all_measured(run, collective))  # type: ignore[no-any-return]


def _all_measured(run: Run, collective: str) -> list[Measured]:
    return [_headline(run, collective), *(_measured(run, point, collective) for point in points(run))]


def _headline(run: Run, collective: str) -> Measured:
    """On links on which c is as wanted; c differs between worlds, so it may take several."""

    def c_on(rate: float) -> float:
        return _once(run, headline(run, rate), collective, [PER_HOP], with_dense=False, often=3).c

    if run.quick:
        return _measured(run, headline(run, FIRST_RATE), collective)
    run.tell(f"{collective}: links on which coding takes as long as the wire")
    rate = headline_rate(c_on)
    tried: dict[float, Measured] = {}
    while rate not in tried and len(tried) < _WORLDS:
        found = tried[rate] = _measured(run, headline(run, rate), collective)
        if HEADLINE_C[0] <= found.c <= HEADLINE_C[1]:
            return found
        rate = next_rate({known: some.c for known, some in tried.items()})
    return min(tried.values(), key=lambda some: off_headline(some.c))


def _measured(run: Run, point: Point, collective: str) -> Measured:
    """Twice where ours is off the model, as on a busy machine, unless the run is quick."""
    under = f"{point.ranks} ranks, {point.codec}, {point.cell.nbytes / 2**20:g} MiB"
    run.tell(f"{collective}: {under}")
    found = _once(run, point, collective, CODED)
    ours = found.ours
    suspect = not run.quick and median(found.ways[ours]) > _SUSPECT * found.model_s(ours)
    if suspect and run.may_again(sum(map(sum, found.ways.values()))):
        more = _once(run, point, collective, [ours, PER_HOP, TWO_SHOT])
        found.coding.extend(more.coding)
        for way in found.ways.keys() & more.ways.keys():
            found.ways[way].extend(more.ways[way])
    return found


def _once(
    run: Run, point: Point, collective: str, coded: Sequence[Way], with_dense: bool = True, often: int = 1
) -> Measured:
    cell = point.cell
    what = (collective, cell.nbytes, point.codec, coded, often * run.repeats(cell), with_dense)
    found = run.on_ranks(cell, point.ranks, measure, *what)
    return Measured(point, collective, *seconds(found))


def seconds(found: Sequence[Sequence[Any]]) -> tuple[list[float], dict[Way, list[float]]]:
    """The codec's times and the ways', of what `measure` gave on all ranks."""
    coding, *times = last_ends([spans for _, spans in found])
    ranks = len(found)
    return [some / ranks for some in coding], dict(
        zip((Way(*way) for way in found[0][0]), times, strict=True)
    )


def measure(
    comm: Communicator,
    collective: str,
    nbytes: int,
    codec: str,
    coded: Sequence[Way],
    repeats: int,
    with_dense: bool = True,
) -> tuple[list[list[Any]], list[list[Span]]]:
    """Measures the codec, these coded ways, and of the dense choices, if wanted, the ring and the fastest.

    Which are the fastest, and into how many segments to cut, is found by trying. What is returned is plain,
    so that JSON can carry it.

    Returns:
        The fields of each way; and this rank's begin and end of each repeat of the codec on every part of a
        message, and of each way.
    """
    import time

    import numpy as np

    own = np.random.default_rng(comm.rank).standard_normal(nbytes // 4 // comm.world, np.float32)
    x = np.tile(own, comm.world)
    call_of = _calls(comm, collective, x, codec)
    ways = [_cut(comm, Way(*way), own.nbytes, call_of) for way in coded]
    if with_dense:
        ways += _dense(comm, collective, nbytes, call_of)
    works = [_coding(collective, codec, x, comm.world), *map(call_of, ways)]
    spans: list[list[Span]] = [[] for _ in works]
    for _ in range(_WARM + repeats):
        for work, mine in zip(works, spans, strict=True):
            start_together(comm)
            begin = time.monotonic()
            work()
            mine.append((begin, time.monotonic()))
    return [list(way) for way in ways], [mine[_WARM:] for mine in spans]


def _coding(collective: str, codec: str, x: Any, parts: int) -> Callable[[], None]:
    """What encodes and decodes each part of x once, into memory of its own."""
    import numpy as np

    coder, cut, out = _core.Codec(codec), np.split(x, parts), np.zeros_like(x)
    decode = coder.decode if collective == "all_gather" else coder.decode_add
    slot = coder.encode(cut[0])

    def work() -> None:
        for part, target in zip(cut, np.split(out, parts), strict=True):
            coder.encode_to(part, slot)
            decode(slot, target)

    return work


def _calls(comm: Communicator, collective: str, x: Any, codec: str) -> Callable[[Way], Callable[[], Any]]:
    """What makes one call: the gathering in place, as FSDP2 does it, the other apart from its result."""
    import numpy as np

    parts = np.split(x, comm.world)
    source, out = (parts[comm.rank], x) if collective == "all_gather" else (x, parts[0].copy())
    call = getattr(comm, collective)

    def of(way: Way) -> Callable[[], Any]:
        how = {"algorithm": way.algorithm, "segments": way.segments, "codec": codec if way.coded else None}
        return lambda: call(source, out=out, **how)

    return of


def _cut(comm: Communicator, way: Way, part_bytes: int, call_of: Callable[[Way], Callable[[], Any]]) -> Way:
    """The way, in the number of segments that takes least time where it has none; the same on all ranks."""
    if way.segments:
        return way
    finest = min(_MOST_SEGMENTS, max(1, part_bytes // _LEAST_PIECE))
    cuts = [way._replace(segments=1 << i) for i in range(finest.bit_length())]
    rounds = [[_slowest(comm, call_of(cut)) for cut in cuts] for _ in range(_WARM + 1)]
    return min(zip(cuts, zip(*rounds, strict=True), strict=True), key=lambda tried: min(tried[1]))[0]


def _dense(
    comm: Communicator, collective: str, nbytes: int, call_of: Callable[[Way], Callable[[], Any]]
) -> list[Way]:
    """The ring, and the fastest others; the same on all ranks."""
    known = fixed(collective, comm.world, nbytes, _core.least_segment(comm.links))
    choices = [Way(name, segments or 1) for name, segments in known]
    tried = {way: _slowest(comm, call_of(way)) for way in choices}
    least = min(tried.values())
    near = sorted((way for way in tried if tried[way] <= _HOPELESS * least), key=lambda way: tried[way])
    return list(dict.fromkeys([_RING, *near[:_MOST_DENSE]]))


def _slowest(comm: Communicator, call: Callable[[], Any]) -> float:
    """Seconds of one call, the slowest rank's."""
    import time

    import numpy as np

    start_together(comm)
    begin = time.monotonic()
    call()
    return float(comm.all_reduce(np.array([time.monotonic() - begin]), op="max")[0])
