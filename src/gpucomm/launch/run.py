"""`gpucomm run`: start N processes of this node as the ranks of one job, and end them together."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpucomm.errors import InvalidArgumentError
from gpucomm.launch.asked import parse_nodes
from gpucomm.launch.job import Job
from gpucomm.links import host_bound, parse_emulated

__all__ = ["add_arguments", "main"]

_EPILOG = """\
Each rank finds GPUCOMM_RANK, GPUCOMM_WORLD and GPUCOMM_JOB in its environment, and RANK, WORLD_SIZE,
LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (a free one, for torch.distributed) and OMP_NUM_THREADS
(usable cores / N, at least 1) where they are not set yet.
Only rank 0 reads the standard input. SIGINT, SIGTERM and SIGHUP are passed on. When a rank fails the others
are terminated, and killed 5 s later; the exit code is that of the first failure (128 + signal for a killed
one). What ranks have started, as a shell script does, is signalled with them.
With --keep-going the others are left alone, so that they can go on by Communicator.shrink(). The exit code is
then 0 if ranks were only killed, by signals, and others ended with 0; else that of the first failure.
--links, which the ranks find as GPUCOMM_LINKS, is KIND:BANDWIDTH[,SETTING...], as in
switch:1Gbit,latency=0.5ms,overhead=50us. KIND is switch (each rank has one port in and one out), chain (each
neighbour pair has a link) or nodes (each node has one port in and one out; of=2x4 or of=3+1 are their ranks).
Settings are overhead=TIME (5us; occupies the port, for each message), latency=TIME (0), jitter=TIME (0; at
most, in addition), seed=N (0; of the jitter), half (duplex), rank2=BANDWIDTH (of a chain link0, between ranks
0 and 1; of nodes node1) for one that has its own, 5s=BANDWIDTH or 5s:rank2=BANDWIDTH for what holds from then
on, in seconds since the start.
--nodes, which the ranks find as GPUCOMM_NODES, is NODESxRANKS, as in 2x2, or the node of each rank, as in
0,0,1. Algorithms then take the ranks for so many nodes; all of them still share memory.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line of `gpucomm run`."""
    parser.epilog = _EPILOG
    parser.add_argument("-n", "--ranks", type=int, required=True, metavar="N", help="number of ranks")
    parser.add_argument("--tag-output", action="store_true", help='put "[rank] " before every line of output')
    parser.add_argument(
        "--keep-going", action="store_true", help="when a rank fails the others go on (see below)"
    )
    parser.add_argument("--links", default="", metavar="SPEC", help="emulate slower links (see below)")
    parser.add_argument(
        "--nodes", default="", metavar="NODES", help="ranks as if on several nodes (see below)"
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("-m", "--module", action="store_true", help="the target is a module, as in python -m")
    kind.add_argument("--no-python", action="store_true", help="the target is an executable")
    # One positional for all: of two, argparse would drop a "--" between them.
    parser.add_argument(
        "command",
        nargs=argparse.PARSER,
        metavar="target",
        help="a Python script, a module (-m) or an executable (--no-python), then its arguments",
    )


def main(args: argparse.Namespace) -> int:
    """Run the job and return its exit code."""
    if args.ranks < 1:
        raise InvalidArgumentError(f"-n {args.ranks}: a job has at least one rank")
    nodes = parse_nodes(args.nodes, args.ranks)
    if args.links:
        spec = parse_emulated(args.links)
        spec.check(args.ranks, nodes)
        if marked := host_bound(spec, args.ranks):
            print(f"gpucomm run: {marked}", file=sys.stderr, flush=True)
    ours = args.command[0] == "--"  # before the target; later ones are the target's
    command = args.command[1:] if ours else args.command
    if args.module:
        command = [sys.executable, "-m", *command]
    elif not args.no_python and Path(command[0]).exists():
        command = [sys.executable, *command]
    elif not args.no_python:
        raise InvalidArgumentError(
            f"there is no script {command[0]!r} (-m takes a module, --no-python any executable)"
        )
    told = {"GPUCOMM_LINKS": args.links, "GPUCOMM_NODES": args.nodes}
    told = {name: value for name, value in told.items() if value}
    return Job(args.ranks, told, tag=args.tag_output, keep_going=args.keep_going).run(command)
