"""`gpucomm bench-auto`: how close "auto" comes to the best fixed choice, over a matrix of calls."""

from __future__ import annotations

import argparse
import math
import re
import statistics
import warnings
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpucomm import _core
from gpucomm.bench import auto_cell, coded
from gpucomm.bench.metrics import ONE_THREAD, p95
from gpucomm.bench.table import with_progress
from gpucomm.errors import InvalidArgumentError
from gpucomm.json_file import check_writable, write_json
from gpucomm.launch import World, local
from gpucomm.links import host_bound, parse_emulated
from gpucomm.units import format_seconds, format_size, parse_names, parse_sizes

__all__ = ["GOALS", "Cell", "add_arguments", "main", "summary"]

GOALS = {"median": 1.05, "p95": 1.25}  # of auto's time over the best fixed choice's
_SUSPECT = 1.05
_LINKS = "shm;switch:1Gbit;switch:4Gbit"
_SIZES = "8,64,512,4K,32K,256K,2M,16M,64M"
_EPILOG = """\
For every cell (links, ranks, collective, size) "auto" is called until it has learnt. Then it and the fixed
choices (every algorithm with 1, 4, 16, ... segments) are timed in turns, float32, in place. A cell's ratio is
auto's median over that of the best fixed choice: 1.05 is 5 % slower. Cells above 1.05 are measured once more,
with twice the repetitions; that counts, and the first ratio is in the rows too. The best of several medians
is below what that choice takes on average, so ratios lean towards above 1. The exit code is 1 where the
median of the ratios is above 1.05 or their 95th percentile above 1.25.
"""


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix, measured.

    Attributes:
        links: "shm", or the emulated ones.
        ranks, collective, nbytes: the call.
        codec: that "auto" might take, or None.
        taken: auto's algorithm and segments.
        best: the best fixed choice.
        auto_s, best_s: their medians, seconds.
        first: the ratio of the first measurement, if this is the second one.
        learnt_in: calls until "auto" had learnt.
        marked: why what is measured is the machine's and not the links', or "".
    """

    links: str
    ranks: int
    collective: str
    nbytes: int
    taken: tuple[str, int]
    best: tuple[str, int]
    auto_s: float
    best_s: float
    learnt_in: int
    first: float | None = None
    codec: str | None = None
    marked: str = ""

    @property
    def ratio(self) -> float:
        """Auto's time over that of the best fixed choice."""
        return self.auto_s / self.best_s

    def row(self) -> dict[str, Any]:
        """The row for machines."""
        return {**vars(self), "ratio": self.ratio}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line of `gpucomm bench-auto`."""
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--collectives", metavar="LIST", help="default: all with a choice, with --codec all that take one")
    add("--ranks", default="2,4,8", metavar="LIST", help="default: 2,4,8")
    add("--sizes", default=_SIZES, metavar="LIST", help=f"bytes of the whole message (default: {_SIZES})")
    add(
        "--links", default=_LINKS, metavar="LIST", help=f"shm, or as of gpucomm run; by ; (default: {_LINKS})"
    )
    add("--codec", metavar="SPEC", help="that auto may take or leave; the fixed choices are without")
    add("--repeats", type=int, default=7, metavar="N", help="repetitions (default: 7)")
    add("--least", type=float, default=0.005, metavar="S", help="seconds that one lasts (default: 0.005)")
    add(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds that a call may take (default: 120)",
    )
    add("--json", type=Path, metavar="FILE", help="write the cells there")


def main(args: argparse.Namespace) -> int:
    """Measure all cells, show a summary and the worst ones."""
    links = [part.strip() for part in args.links.split(";") if part.strip()]
    ranks = [_whole(text) for text in parse_names(args.ranks)]
    offered = auto_cell.OFFERED if args.codec is None else coded.takers()
    collectives = parse_names(args.collectives or ",".join(offered))
    sizes = sorted(parse_sizes(args.sizes))
    for option, values in (("--links", links), ("--ranks", ranks), ("--collectives", collectives)):
        if not values:
            raise InvalidArgumentError(f"{option} must name at least one")
    for name in collectives:
        if name not in offered:
            raise InvalidArgumentError(f"--collectives: {name!r} is none of {', '.join(offered)}")
    for name in links:  # before the hours that others take
        for number in ranks if name != "shm" else ():
            parse_emulated(name).check(number)
    if args.codec is not None:
        _core.Codec(args.codec)  # tells what is wrong with it
    if args.repeats < 1:
        raise InvalidArgumentError(f"--repeats {args.repeats} must be at least 1")
    if not 0 < args.least < math.inf:
        raise InvalidArgumentError(f"--least {args.least} must be a number of seconds above 0")
    check_writable(args.json)
    total = len(links) * len(ranks) * len(collectives) * len(sizes)
    steps = _kept(_cells(args, links, ranks, collectives, sizes), args.json)
    with closing(steps):
        cells: list[Any] = with_progress(steps, total, "bench-auto")
    print(summary(cells))
    ratios = [cell.ratio for cell in cells]
    return int(statistics.median(ratios) > GOALS["median"] or p95(ratios) > GOALS["p95"])


def _kept(steps: Generator[Any, None, None], file: Path | None) -> Generator[Any, None, None]:
    """Writes what there is after each cell: hours of measuring may be interrupted."""
    rows = []
    with closing(steps):
        for cell in steps:
            if cell is not None and file is not None:
                rows.append(cell.row())
                write_json(file, rows)
            yield cell


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 2:
        raise InvalidArgumentError(f"--ranks: {text!r} must be a whole number of at least 2")
    return int(text)


def _cells(
    args: argparse.Namespace,
    links: Sequence[str],
    ranks: Sequence[int],
    collectives: Sequence[str],
    sizes: Sequence[int],
) -> Generator[Any, None, None]:
    for name in links:
        for number in ranks:
            emulated = None if name == "shm" else name
            marked = host_bound(parse_emulated(emulated), number) if emulated else ""
            for collective in collectives:
                with warnings.catch_warnings():  # the summary says it
                    warnings.simplefilter("ignore", RuntimeWarning)
                    world = local(number, links=emulated, env=ONE_THREAD, timeout=args.timeout)
                with world:
                    for nbytes in sizes:
                        yield replace(_cell(world, name, collective, nbytes, args), marked=marked)
                        yield None


def _cell(world: World, links: str, collective: str, nbytes: int, args: argparse.Namespace) -> Cell:
    def once(repeats: int, first: float | None) -> Cell:
        found = world.run(auto_cell.measure, collective, nbytes, repeats, args.least, args.codec)[0]
        best = min(found["fixed"], key=lambda row: statistics.median(row["times_s"]))
        return Cell(
            links,
            world.ranks,
            collective,
            nbytes,
            found["taken"],
            (best["algorithm"], best["segments"]),
            statistics.median(found["auto_s"]),
            statistics.median(best["times_s"]),
            found["learnt_in"],
            first,
            args.codec,
        )

    cell = once(args.repeats, None)
    return cell if cell.ratio <= _SUSPECT else once(2 * args.repeats, cell.ratio)


def summary(cells: Sequence[Cell]) -> str:
    """Ratios by links and ranks, links that are too fast for this machine, and the ten worst cells."""
    lines = [f"{'links':<18} ranks  cells  median     p95     max"]
    groups = sorted({(cell.links, cell.ranks) for cell in cells})
    for links, ranks in [*groups, ("all", 0)]:
        some = [c.ratio for c in cells if links == "all" or (c.links, c.ranks) == (links, ranks)]
        lines.append(
            f"{links:<18} {ranks or '':>5}  {len(some):>5}  {statistics.median(some):6.3f}"
            f"  {p95(some):6.3f}  {max(some):6.3f}"
        )
    marks = {f"{cell.links}: {cell.marked}": None for cell in cells if cell.marked}
    lines += [*marks, "", "the worst:"]
    for cell in sorted(cells, key=lambda c: -c.ratio)[:10]:
        where = f"{cell.collective} {format_size(cell.nbytes)}, {cell.ranks} ranks, {cell.links}"
        lines.append(
            f"  {cell.ratio:5.2f}  {where}: {cell.taken[0]} {cell.taken[1]} ({format_seconds(cell.auto_s)}),"
            f" best {cell.best[0]} {cell.best[1]} ({format_seconds(cell.best_s)})"
        )
    return "\n".join(lines)
