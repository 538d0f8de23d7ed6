"""`gpucomm explain`: the candidates of a call, their predicted and measured times, and which is taken."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpucomm import _core, probe
from gpucomm.bench import coded
from gpucomm.bench.suite import Suite
from gpucomm.bench.table import with_progress
from gpucomm.cost import MOST_RANKS, measured_coding
from gpucomm.errors import InvalidArgumentError
from gpucomm.json_file import check_writable, write_json
from gpucomm.launch import local
from gpucomm.launch.asked import parse_nodes
from gpucomm.links import parse_model, parse_spec
from gpucomm.units import format_seconds, format_size, parse_size

__all__ = ["add_arguments", "candidates", "main"]

_EPILOG = """\
Without --links the ranks are started here: the links between them are as algorithm="auto" has them (see
gpucomm probe), and every candidate is timed. With --links (as of gpucomm plan) nothing is started: the model
alone speaks. With --codec the algorithms that code are among the candidates, with what that codec was
measured to take of a core; "auto" is then what it takes where a call names the codec.
--nodes is NODESxRANKS, as in 2x2, or the node of each rank, as in 0,0,1; or let the links say it, as in
nodes:1Gbit,of=2x2.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line of `gpucomm explain`."""
    parser.epilog = _EPILOG
    parser.add_argument("collective", help="all_reduce, broadcast, gather, all_to_all, ...")
    parser.add_argument("--bytes", default="1M", metavar="SIZE", help="of the whole message (default: 1M)")
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="number of ranks (default: as the nodes say, or 2)"
    )
    parser.add_argument("--links", metavar="MODEL", help="predict on this model of the links instead")
    parser.add_argument(
        "--nodes", default="", metavar="NODES", help="ranks as if on several nodes, as in 2x2"
    )
    parser.add_argument("--codec", metavar="SPEC", help="that the call names, as int8 (float32)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")


def main(args: argparse.Namespace) -> int:
    """Predict, measure unless the links are given, and print the table and the reason."""
    args.ranks = _ranks(args)
    check_writable(args.json)
    if args.codec:
        coded.check(args.codec, args.collective)
    nbytes = parse_size(args.bytes)
    nodes = parse_nodes(args.nodes, args.ranks)
    if args.links:
        links = parse_model(args.links, args.ranks)
        parse_spec(args.links).check(args.ranks, nodes)
        speeds = measured_coding(args.codec)[1:] if args.codec else (0.0, 0.0)
    else:
        links, speeds = _measured(args.ranks, args.nodes, args.codec)
    rows = candidates(args.collective, nbytes, args.ranks, links, nodes, args.codec, speeds)
    if not args.links:
        _time(rows, args.collective, nbytes, args.ranks, args.nodes, args.codec)
    print(
        f"{args.collective} of {format_size(nbytes)}, {args.ranks} ranks; {links.kind}, alpha "
        f"{format_seconds(links.alpha)}, latency {format_seconds(links.lambda_)}, {_rates(links)} GB/s a link"
    )
    alike = _core.most_bytes(nbytes)
    if alike != nbytes:
        print(f"predicted for {format_size(alike)}: sizes up to each power of two are chosen for alike")
    _print(rows)
    print(_reason(rows))
    write_json(args.json, rows)
    return 0


def _ranks(args: argparse.Namespace) -> int:
    ranks = args.ranks
    if ranks is None:
        nodes = parse_nodes(args.nodes) or (parse_spec(args.links).links.nodes if args.links else ())
        ranks = len(nodes) or 2
    if ranks < 2:
        raise InvalidArgumentError(f"--ranks {ranks}: alone there is nothing to choose, give at least 2")
    if ranks > MOST_RANKS:
        raise InvalidArgumentError(f"--ranks {ranks} must be at most {MOST_RANKS}")
    return int(ranks)


def candidates(
    collective: str,
    nbytes: int,
    world: int,
    links: _core.Links,
    nodes: Sequence[int] = (),
    codec: str | None = None,
    speeds: tuple[float, float] = (0.0, 0.0),
) -> list[dict[str, Any]]:
    """Every algorithm that offers the collective on such links, with the segments it would take.

    Those that "auto" considers: of those that code only with a codec, and none that must be named
    or that is as another one among so few ranks.

    Args:
        collective: its name.
        nbytes: the whole message.
        world: number of ranks.
        links: the model of the links.
        nodes: the node of each rank; empty: as the links say, or one.
        codec: a spec.
        speeds: seconds that a byte of float32 takes to encode and to decode.

    Returns:
        Rows of algorithm, segments, codec (or None), predicted_s and taken, the cheapest first.

    Raises:
        InvalidArgumentError: an unknown collective.
    """
    where = list(nodes or links.nodes)
    several = len(set(where)) > 1
    of: dict[str, Any] = {}
    if codec is not None:
        of = {"codec": codec, "encode": speeds[0], "decode": speeds[1]}
    taken = _core.choose(collective, nbytes, world, links, nodes=where, **of)
    rows = []
    for name, about in _core.algorithms().items():
        considered = not about["named_only"] and (several or not about["across_nodes"])
        considered = considered and world >= about["from_world"]
        if considered and collective in about["collectives"] and (of or not about["coded"]):
            how = {"algorithm": name, "nodes": where, **(of if about["coded"] else {})}
            _, segments, cost_s = _core.choose(collective, nbytes, world, links, **how)
            row = {"algorithm": name, "segments": segments, "codec": codec if about["coded"] else None}
            rows.append(row | {"predicted_s": cost_s, "taken": name == taken[0]})
    return sorted(rows, key=lambda row: row["predicted_s"])


def _measured(ranks: int, nodes: str, codec: str | None) -> tuple[_core.Links, tuple[float, float]]:
    """The links, and seconds that a byte takes to encode and to decode where all ranks do so at once."""
    with local(ranks, nodes=nodes) as world:
        figures = world.run(partial(probe.measure, codecs=(codec,) if codec else ()))[0]
    return figures.links, figures.codecs[codec] if codec else (0.0, 0.0)


def _rates(links: _core.Links) -> str:
    rates = sorted({1e-9 / beta if beta else float("inf") for beta in links.betas or [links.beta]})
    return " to ".join(f"{rate:.3g}" for rate in ([rates[0], rates[-1]] if len(rates) > 1 else rates))


def _time(
    rows: list[dict[str, Any]], collective: str, nbytes: int, ranks: int, nodes: str, codec: str | None
) -> None:
    names = tuple(row["algorithm"] for row in rows)
    what = (collective, ranks, (nbytes,), names, (), "float32", 5, 0.01, 60.0)
    suite = Suite(*what, nodes=nodes, codec=codec)
    with closing(suite.run()) as steps:  # also ends the ranks when we are interrupted
        results = {r.algorithm: r for r in with_progress(steps, suite.steps, f"explain {collective}")}
    for row in rows:
        row["measured_s"] = float(np.median(results[row["algorithm"]].times_s))


def _print(rows: list[dict[str, Any]]) -> None:
    measured = "measured_s" in rows[0]
    print(f"  {'algorithm':<24} segments  predicted" + ("   measured" if measured else ""))
    for row in rows:
        last = f"  {format_seconds(row['measured_s']):>9}" if measured else ""
        mark = "*" if row["taken"] else " "
        predicted = format_seconds(row["predicted_s"])
        print(f"{mark} {row['algorithm']:<24} {row['segments']:>8}  {predicted:>9}{last}")


def _reason(rows: list[dict[str, Any]]) -> str:
    taken = next(row for row in rows if row["taken"])
    segments = f"{taken['segments']} segment{'' if taken['segments'] == 1 else 's'}"
    text = f'"auto" takes {taken["algorithm"]}, {segments}: '
    if taken is rows[0]:
        text += "the least predicted cost"
    elif rows[0]["codec"] and not taken["codec"]:
        text += (
            "the least without the codec, which in memory must gain to be tried,"
            " a fifth of the time where it loses bits"
        )
    else:
        text += (
            "within 2 % of the least predicted cost; among cuts so near, links get fewer messages, memory"
            " gets pieces that stay in caches"
        )
    if "measured_s" in taken:
        best = min(rows, key=lambda row: float(row["measured_s"]))
        over = taken["measured_s"] / best["measured_s"] - 1
        if over > 0:
            text += f"; measured {over:.0%} above the fastest, {best['algorithm']}: repeated calls learn that"
        else:
            text += "; measured the fastest"
    return text
