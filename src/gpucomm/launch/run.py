"""`gpucomm run`: start N processes of this node as the ranks of one job, and end them together."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from gpucomm.errors import InvalidArgumentError
from gpucomm.launch import child
from gpucomm.launch.environment import parse_nodes
from gpucomm.launch.lines import Output
from gpucomm.launch.processes import base_environment, describe_end, end_all, exit_code, rank_environment
from gpucomm.links import host_bound, parse_emulated

__all__ = ["add_arguments", "main"]

GRACE = 5.0  # seconds between SIGTERM and SIGKILL
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
_EPILOG = """\
Each rank finds GPUCOMM_RANK, GPUCOMM_WORLD and GPUCOMM_JOB in its environment, and RANK, WORLD_SIZE,
LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (a free one, for torch.distributed) and OMP_NUM_THREADS
(usable cores / N, at least 1) where they are not set yet.
Only rank 0 reads the standard input. SIGINT, SIGTERM and SIGHUP are passed on. When a rank fails the others
are terminated, and killed 5 s later; the exit code is that of the first failure (128 + signal for a killed
one).
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
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("-n", "--ranks", type=int, required=True, metavar="N", help="number of ranks")
    parser.add_argument("--tag-output", action="store_true", help='put "[rank] " before every line of output')
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
    job = _Job(args.ranks, args.tag_output, {name: value for name, value in told.items() if value})
    return job.run(command)


class _Job:
    def __init__(self, ranks: int, tag: bool, told: dict[str, str]) -> None:
        self._ranks = ranks
        self._told = told
        self._tag = tag
        self._job = secrets.token_hex(8)
        self._base = base_environment(os.environ)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._running: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._failure = 0  # exit code of the job, once a rank has failed or we were told to end
        self._reported = False
        self._kill_at: float | None = None

    def run(self, command: Sequence[str]) -> int:
        """Start the ranks, wait for their end and return the exit code."""
        with self._selector, _signals() as wake:
            self._selector.register(wake, selectors.EVENT_READ)
            try:
                for rank in range(self._ranks):
                    self._start(rank, command)
                while self._running:
                    self._step(wake)
                self._finish_output()
            finally:
                end_all(self._processes, GRACE)
        return self._failure

    def _start(self, rank: int, command: Sequence[str]) -> None:
        environment = rank_environment(rank, self._ranks, self._job, self._base) | self._told
        if self._tag:
            environment.setdefault("PYTHONUNBUFFERED", "1")  # a pipe would hold lines back
        pipe = subprocess.PIPE if self._tag else None
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *command],
            env=environment,
            stdin=None if rank == 0 and not _is_terminal() else subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,  # Ctrl-C reaches us only, and we pass it on once
        )
        self._processes.append(process)
        self._running.add(rank)
        self._collect(rank, process.stdout, "stdout")
        self._collect(rank, process.stderr, "stderr")

    def _collect(self, rank: int, pipe: IO[bytes] | None, sink: str) -> None:
        if pipe is not None:
            self._selector.register(pipe, selectors.EVENT_READ, Output(rank, pipe, sink))

    def _step(self, wake: socket.socket) -> None:
        wait = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
        events = self._selector.select(wait)
        for key, _ in events:
            if key.fileobj is wake:
                for signum in wake.recv(64):
                    self._signalled(signum)
            elif not key.data.forward():
                self._selector.unregister(key.fileobj)
        self._reap()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._send(signal.SIGKILL)
            self._kill_at = None

    def _signalled(self, signum: int) -> None:
        if signum == signal.SIGCHLD:
            return
        again = self._kill_at is not None  # someone is in a hurry
        self._failure = self._failure or 128 + signum
        self._send(signal.SIGKILL if again else signum)
        self._kill_at = time.monotonic() + GRACE

    def _reap(self) -> None:
        # A rank may have been seen to end when a signal was sent to it.
        ended = {rank for rank in self._running if self._processes[rank].poll() is not None}
        self._running -= ended
        failed = [rank for rank in ended if self._processes[rank].returncode]
        if not failed or self._reported:
            return
        # A killed rank is the cause, one that raised at the same time its consequence.
        first = min(failed, key=lambda rank: (self._processes[rank].returncode > 0, rank))
        print(f"gpucomm run: {describe_end(first, self._processes[first])}", file=sys.stderr, flush=True)
        self._reported = True
        self._failure = exit_code(self._processes[first])
        if self._kill_at is None:
            self._send(signal.SIGTERM)
            self._kill_at = time.monotonic() + GRACE

    def _send(self, signum: int) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signum)
                process.send_signal(signal.SIGCONT)  # a stopped one acts only then

    def _finish_output(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, Output):
                key.data.finish()


def _is_terminal() -> bool:
    """Whether our standard input is a terminal, which a process of another session cannot read."""
    return sys.__stdin__ is not None and sys.__stdin__.isatty()


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket that yields the numbers of the signals that arrive; must be entered in the main thread."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        heard = [
            signum
            for signum in _SIGNALS
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN  # as nohup has it
        ]
        before = {signum: signal.signal(signum, lambda *_: None) for signum in heard}
        wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(wakeup)
            for signum, handler in before.items():
                signal.signal(signum, handler)
