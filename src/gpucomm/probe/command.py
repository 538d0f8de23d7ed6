"""`gpucomm probe`: measure the links between ranks and show them."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from gpucomm.comm import Communicator
from gpucomm.errors import InvalidArgumentError
from gpucomm.launch import init, local
from gpucomm.launch.environment import detect
from gpucomm.probe.survey import measure

if TYPE_CHECKING:
    from gpucomm.probe.figures import Figures

__all__ = ["add_arguments", "main"]

_CODECS = ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "zfp:8", "mpc")
_EPILOG = """\
With -n the ranks are started here, with --links over emulated links: these are always measured, to compare
them with what was asked for. Without -n the ranks are those of a launcher (mpirun, torchrun, srun,
gpucomm run --no-python -n 4 gpucomm probe), and rank 0 shows the figures. What was measured between the same
ranks in the last 24 hours is shown as it is, unless --fresh is given.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line of `gpucomm probe`."""
    parser.epilog = _EPILOG
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="start so many ranks here")
    parser.add_argument("--links", metavar="SPEC", help="emulate slower links (see gpucomm run --help)")
    parser.add_argument("--fresh", action="store_true", help="measure again, whatever was measured before")
    parser.add_argument("--json", action="store_true", help="all figures, for programs")


def main(args: argparse.Namespace) -> int:
    """Start the ranks or join them, measure, and show what came out."""
    figures = _launched(args) if args.ranks is None else _started(args)
    if figures is not None:
        print(figures.to_json() if args.json else figures)
    return 0


def _launched(args: argparse.Namespace) -> Figures | None:
    world = detect(os.environ).world
    if world < 2:
        raise InvalidArgumentError("no launcher has started several ranks: give their number, as in -n 4")
    if args.links:
        raise InvalidArgumentError("--links needs -n; the ranks of a launcher take GPUCOMM_LINKS")
    with init() as comm:
        figures = _measured(comm, args.fresh)
        return figures if comm.rank == 0 else None


def _started(args: argparse.Namespace) -> Figures:
    if args.ranks < 2:
        raise InvalidArgumentError(f"-n {args.ranks}: links are between ranks, give at least 2")
    with local(args.ranks, links=args.links) as world:
        return world.run(_measured, args.fresh)[0]


def _measured(comm: Communicator, fresh: bool) -> Figures:
    return measure(comm, fresh=fresh or bool(comm.emulation), codecs=_CODECS)
