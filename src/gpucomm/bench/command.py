"""`gpucomm bench`: time a collective, beside other libraries in the same run."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from pathlib import Path

from gpucomm import _core
from gpucomm.bench import coded
from gpucomm.bench.metrics import COLLECTIVES, MEMORIES
from gpucomm.bench.peers import known_peers, peer
from gpucomm.bench.suite import Suite
from gpucomm.bench.table import show, with_progress
from gpucomm.errors import InvalidArgumentError
from gpucomm.json_file import check_writable, write_json
from gpucomm.units import parse_names, parse_sizes

__all__ = ["add_arguments", "main"]

DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")
_EPILOG = """\
Sizes are bytes of the whole buffer (K, M, G: 2^10, 2^20, 2^30): of all ranks together for all_gather and
reduce_scatter. Each library's result is first checked on every rank against the exact one, bit for bit.
"auto" is called until it has learnt.
Then repetitions rotate over the libraries and algorithms. One lasts at least 50 ms, in as many calls as
that takes, in place, on arrays of zeros; it starts at a barrier and counts the slowest rank. Shown are the
median, least and largest time of a call; algbw, bytes / time; busbw, algbw times the share of the bytes
that the busiest link carries (2(p-1)/p for all_reduce, (p-1)/p for all_gather and reduce_scatter, else 1);
and each peer's time over ours: above 1, gpucomm is faster. The exit code is 1 where a result was wrong.
openmpi and mpich run in small jobs of their own, one per repetition, in between; each in its variants, and
the ratio of the fastest of these stands in brackets. "gpucomm, huge pages" is gpucomm on arrays for which
huge pages were asked, as these variants have them; gpucomm.empty, on arrays in shared memory.
With --codec the arrays hold random numbers, reductions are means, and results are checked against the
codec's bound.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line of `gpucomm bench`."""
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("collective", choices=COLLECTIVES, metavar="collective", help=", ".join(COLLECTIVES))
    add("--ranks", type=int, default=2, metavar="N", help="processes (default: 2)")
    add("--sizes", metavar="LIST", help="default: 1K,64K,1M,16M; quick: 1K,1M")
    add("--algorithms", default="auto", metavar="LIST", help='of gpucomm, or "all" (default: auto)')
    add("--against", default="", metavar="LIST", help=f"other libraries: {', '.join(known_peers())}")
    add(
        "--memory",
        default="private",
        metavar="LIST",
        help=f"of our arrays: {', '.join(MEMORIES)} (default: private)",
    )
    python = "interpreter of a peer that lives in an environment of its own; may be repeated"
    add("--peer-python", action="append", default=[], metavar="NAME=PATH", help=python)
    add("--codec", metavar="SPEC", help="of the algorithms that take one, and that auto may take")
    add("--links", metavar="SPEC", help="slower links to emulate between our ranks, as of gpucomm run")
    add("--dtype", choices=DTYPES, default="float32", metavar="NAME", help=f"{', '.join(DTYPES)}")
    add("--repeats", type=int, metavar="N", help="repetitions (default: 5; quick: 3)")
    add("--timeout", type=float, default=60.0, metavar="S", help="seconds that a call may take (default: 60)")
    add("--quick", action="store_true", help="few sizes and short repetitions, for a first look")
    add("--json", type=Path, metavar="FILE", help="write a list of rows there")


def main(args: argparse.Namespace) -> int:
    """Check the arguments, measure, and show what came out."""
    suite = _suite(args)
    check_writable(args.json)
    with closing(suite.run()) as steps:  # also ends the ranks when we are interrupted
        results = with_progress(steps, suite.steps, f"bench {suite.collective}")
    ranks = "1 rank" if suite.ranks == 1 else f"{suite.ranks} ranks"
    under = [text for text in (suite.codec, suite.links) if text]
    title = ", ".join([suite.collective, ranks, suite.dtype, *under, f"median of {suite.repeats}"])
    show(title, results, suite.peers)
    write_json(args.json, [result.row() for result in results])
    wrong = [f"{r.library} {r.algorithm} at {r.nbytes} B" for r in results if not r.correct]
    if wrong:
        print(f"gpucomm bench: wrong results from {'; '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def _suite(args: argparse.Namespace) -> Suite:
    if args.ranks < 1:
        raise InvalidArgumentError(f"--ranks {args.ranks} must be at least 1")
    repeats = args.repeats if args.repeats is not None else 3 if args.quick else 5
    if repeats < 1:
        raise InvalidArgumentError(f"--repeats {repeats} must be at least 1")
    peers, memory = parse_names(args.against), parse_names(args.memory)
    for name in peers:
        peer(name).check(args.dtype)
    if peers and (args.links or args.codec):
        raise InvalidArgumentError(f"--links and --codec are ours alone: {peers[0]} knows neither")
    if args.codec:
        coded.check(args.codec, args.collective, args.dtype)
    if not memory or not set(memory) <= set(MEMORIES):
        raise InvalidArgumentError(f"--memory {args.memory!r} must name one or more of {', '.join(MEMORIES)}")
    return Suite(
        collective=args.collective,
        ranks=args.ranks,
        sizes=tuple(
            parse_sizes(("1K,1M" if args.quick else "1K,64K,1M,16M") if args.sizes is None else args.sizes)
        ),
        algorithms=tuple(_algorithms(args.algorithms, args.collective, args.ranks, args.codec)),
        peers=tuple(peers),
        dtype=args.dtype,
        repeats=repeats,
        least_s=0.002 if args.quick else 0.050,
        timeout=args.timeout,
        memory=tuple(memory),
        links=args.links,
        codec=args.codec,
        pythons=dict(_named_path(text, peers) for text in args.peer_python),
    )


def _named_path(text: str, peers: list[str]) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals or name not in peers:
        raise InvalidArgumentError(f"--peer-python {text!r} must be NAME=PATH, NAME one of --against")
    if not os.access(path, os.X_OK):
        raise InvalidArgumentError(f"--peer-python {text!r}: {path!r} cannot be executed")
    return name, path


def _algorithms(text: str, collective: str, ranks: int, codec: str | None) -> list[str]:
    names, known = parse_names(text), _core.algorithms()
    if names == ["all"]:
        names = [n for n, a in known.items() if collective in a["collectives"] and (codec or not a["coded"])]
    if not names:
        raise InvalidArgumentError(f"--algorithms {text!r} must name at least one, such as auto,ring")
    for name in names:
        if name != "auto":
            _core.build_plan(collective, name, ranks, 0)  # its sentence where it is unknown or not on offer
            if known[name]["coded"] and not codec:
                raise InvalidArgumentError(f"--algorithms {text}: {name} codes its messages, give --codec")
    return names
