"""The `gpucomm` command: one row per subcommand, whose module is imported when it is used."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from gpucomm import _core
from gpucomm.errors import Error, InvalidArgumentError

__all__ = ["main"]

# name: (module with add_arguments(parser) and main(args) -> exit code, what it does)
COMMANDS = {
    "plan": ("gpucomm.plan_command", "draw or list the plan of a collective, verified"),
    "explain": ("gpucomm.explain", 'show what "auto" chooses, at what cost, and why'),
    "probe": ("gpucomm.probe.command", "measure the links between ranks and show them"),
    "bench": ("gpucomm.bench.command", "time a collective beside other libraries"),
    "bench-auto": ("gpucomm.bench.auto_command", 'how close "auto" comes to the best fixed choice'),
    "reproduce": ("gpucomm.reproduce.command", "a paper's claims beside our figures for them"),
    "run": ("gpucomm.launch.run", "start N processes of this node as the ranks of one job"),
    "flight": ("gpucomm.flight", "name the first difference between the ranks' flight logs"),
    "doctor": ("gpucomm.doctor", "show what is on, what is off and why"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        argv: the arguments, without the program's name; by default those of the process.

    Returns:
        The exit code: 0, the subcommand's own, 2 for a wrong argument, 1 for another error of gpucomm.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["--version"]:
        print(f"gpucomm {_core.version}")
        return 0
    name = _top_parser().parse_args(given[:1]).command
    module_name, summary = COMMANDS[name]
    module = importlib.import_module(module_name)
    parser = argparse.ArgumentParser(prog=f"gpucomm {name}", description=summary, allow_abbrev=False)
    module.add_arguments(parser)
    args = parser.parse_args(given[1:])
    try:
        return int(module.main(args))
    except Error as error:
        print(f"gpucomm {name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidArgumentError) else 1
    except BrokenPipeError:
        # The reader of our output has gone; Python's own flush at exit must not complain once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _top_parser() -> argparse.ArgumentParser:
    rows = "\n".join(f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="gpucomm",
        description="Collectives for training over links slower than the processors.",
        epilog=f"commands:\n{rows}\n\ngpucomm COMMAND --help tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    return parser
