"""`gpucomm reproduce`: a paper's claims, our figures for them, and how these were obtained."""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpucomm.errors import InvalidArgumentError, UnavailableError
from gpucomm.json_file import check_writable, write_json
from gpucomm.reproduce.claims import Claim, Outcome, Paper
from gpucomm.reproduce.papers import PAPERS, find
from gpucomm.reproduce.pictures import draw
from gpucomm.reproduce.run import Run
from gpucomm.reproduce.table import progress, show, show_samples
from gpucomm.units import parse_names

__all__ = ["add_arguments", "main", "work"]

_EPILOG = """\
Each row says how its figure was obtained: emulated (real data between processes, over links as slow as the
row says), simulated (the plans on a model of the links; no data), counted, or measured (on this machine as
it is). x is n beta / alpha: how much longer the message takes than the overhead of one. Quote ratios. The
exit code is 0 even where a goal is missed: the column "holds" says it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line of `gpucomm reproduce`."""
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("paper", metavar="PAPER", help=", ".join(PAPERS))
    add("--quick", action="store_true", help="few sizes, worlds and repeats: about a minute")
    add("--claims", metavar="LIST", help="only these (default: all)")
    add("--json", type=Path, metavar="FILE", help="write a list of rows there, raw samples included")
    add("--pictures", type=Path, metavar="DIR", help="draw a picture of each claim there")
    add("--samples", action="store_true", help="print the raw samples too (a full run always does)")


def main(args: argparse.Namespace) -> int:
    """Check the arguments, do the work, and show what came out."""
    paper = find(args.paper)
    claims = _claims(paper, args.claims)
    check_writable(args.json)
    if args.pictures is not None:
        if importlib.util.find_spec("matplotlib") is None:
            raise UnavailableError("--pictures needs matplotlib: pip install 'gpucomm[bench]'")
        _make_folder(args.pictures)
    run = Run(args.quick)
    outcomes = work(run, claims)
    rows = [row for outcome in outcomes for row in outcome.rows]
    if args.samples or not args.quick:
        show_samples(rows)
    show(f"{paper.title}, {paper.source}" + (", quick" if args.quick else ""), rows)
    for text in run.left_out:
        print(f"left out: {text}")
    write_json(args.json, [row.as_json(paper.source) for row in rows])
    if args.pictures is not None:
        for claim, outcome in zip(claims, outcomes, strict=True):
            draw(outcome.picture, args.pictures / f"{claim.name}.svg")
    return 0


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InvalidArgumentError(f"--pictures {str(path)!r} cannot be written into: {error}") from error


def work(run: Run, claims: Sequence[Claim]) -> list[Outcome]:
    """Obtain the figures of these claims, in their order."""
    outcomes = []
    with progress(len(claims), "reproduce") as (tell, one_more):
        run.tell = tell
        for claim in claims:
            outcomes.append(claim.work(run))
            one_more()
    return outcomes


def _claims(paper: Paper, text: str | None) -> list[Claim]:
    by_name = {claim.name: claim for claim in paper.claims}
    names = list(by_name) if text is None else parse_names(text)
    if not names:
        known = ", ".join(by_name)
        raise InvalidArgumentError(f"--claims {text!r} must name at least one of {paper.name}: {known}")
    for name in names:
        if name not in by_name:
            raise InvalidArgumentError(f"unknown claim {name!r} of {paper.name}; known: {', '.join(by_name)}")
    return [by_name[name] for name in names]
