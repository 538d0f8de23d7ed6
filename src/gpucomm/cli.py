"""The `gpucomm` command: one row per subcommand, whose module is imported when it is used."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

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
    "flight": ("gpucomm.flight_command", "name the first difference between the ranks' flight logs"),
    "doctor": ("gpucomm.doctor", "show what is on, what is off and why"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        argv: the arguments, without the program's name; by default those of the process.

    Returns:
        The exit code: 0, the subcommand's own, 2 for a wrong argument, 1 for another error of gpucomm or of
        the system, such as a full disk or too little memory, 130 after Ctrl-C.

    Raises:
        SystemExit: the arguments are no command's, or SIGTERM came: 143, once all has been cleaned up.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    name = "--version" if given[:1] == ["--version"] else _top_parser().parse_args(given[:1]).command
    try:
        with _sigterm_exits(), _any_character():
            return _run(name, given[1:])
    except Error as error:
        print(f"gpucomm {name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidArgumentError) else 1
    except BrokenPipeError:  # the reader of our output has gone
        _give_up_output()
        return 141
    except OSError as error:
        print(f"gpucomm {name}: {error}", file=sys.stderr)
        _give_up_output()
        return 1
    except MemoryError as error:
        print(f"gpucomm {name}: no memory: {error}".removesuffix(": "), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(name: str, given: Sequence[str]) -> int:
    code = 0
    if name == "--version":
        print(f"gpucomm {_core.version}")
    else:
        module_name, summary = COMMANDS[name]
        module = importlib.import_module(module_name)
        parser = argparse.ArgumentParser(prog=f"gpucomm {name}", description=summary, allow_abbrev=False)
        parser.formatter_class = argparse.RawDescriptionHelpFormatter  # an epilog keeps its lines
        module.add_arguments(parser)
        args = parser.parse_args(given)
        _check(args)
        code = int(module.main(args))
    print(end="", flush=True)  # here a full disk is a sentence, at Python's exit it would be a traceback
    return code


def _check(args: argparse.Namespace) -> None:
    """What the core could not even take, for one sentence here; files may have any name, they are paths."""
    for name, value in vars(args).items():
        if isinstance(value, int) and not -(1 << 31) <= value < 1 << 31:
            raise InvalidArgumentError(f"{name} {value} must be from -2^31 to 2^31 - 1")
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise InvalidArgumentError(f"{name} {value!r} must be UTF-8 text")


@contextlib.contextmanager
def _any_character() -> Iterator[None]:
    """What the output cannot encode, as ASCII cannot the sign of microseconds, is escaped and no error."""
    output = sys.stdout
    if not isinstance(output, io.TextIOWrapper):  # closed, or a notebook's
        yield
        return
    before = output.errors
    output.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        output.reconfigure(errors=before)


@contextlib.contextmanager
def _sigterm_exits() -> Iterator[None]:
    """SIGTERM raises SystemExit, so that ranks are ended and folders removed; a second one ends us at once.

    Left as it is where somebody else has said what it does, or it cannot be said: in other threads.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit_by_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_by_signal(signum: int, frame: FrameType | None) -> None:
    signal.signal(signum, signal.SIG_DFL)
    raise SystemExit(128 + signum)


def _give_up_output() -> None:
    """Drop what cannot be written, so that Python's own flush at exit does not complain once more."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
