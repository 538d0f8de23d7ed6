"""The processes of `gpucomm run`: they are started together, heard, and ended together."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from gpucomm.launch import child
from gpucomm.launch.lines import Output
from gpucomm.launch.processes import (
    POLL,
    base_environment,
    describe_end,
    end_all,
    exit_code,
    is_left,
    rank_environment,
    signal_all,
    starting,
)

__all__ = ["Job"]

GRACE = 5.0  # seconds between SIGTERM and SIGKILL
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


class Job:
    """One run of a command as the ranks of a job.

    Args:
        ranks: how many.
        told: variables for their environment.
        tag: put "[rank] " before every line of their output.
        keep_going: when a rank fails the others go on.
    """

    def __init__(self, ranks: int, told: Mapping[str, str], *, tag: bool, keep_going: bool) -> None:
        self._ranks = ranks
        self._told = dict(told)
        self._tag = tag
        self._keep_going = keep_going
        self._job = secrets.token_hex(8)
        self._base = base_environment(os.environ)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._running: set[int] = set()
        self._orphaned: set[int] = set()  # they ended, while the job does, before what they have started
        with starting(0, ranks):
            self._selector = selectors.DefaultSelector()
        self._failure = 0  # exit code of the job, once a rank has failed or we were told to end
        self._reported = False
        self._survived = False  # all that have failed were killed, and others ended well
        self._kill_at: float | None = None

    def run(self, command: Sequence[str]) -> int:
        """Start the ranks, wait for their end and return the exit code."""
        with self._selector, _signals() as wake:
            self._selector.register(wake, selectors.EVENT_READ)
            try:
                for rank in range(self._ranks):
                    with starting(rank, self._ranks):
                        self._start(rank, command)
                while self._running or self._orphaned:
                    self._step(wake)
                self._finish_output()
            finally:
                end_all(self._processes, GRACE)
        return 0 if self._survived else self._failure

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
        events = self._selector.select(POLL if self._orphaned else wait)
        for key, _ in events:
            if key.fileobj is wake:
                for signum in wake.recv(64):
                    self._signalled(signum)
            elif not key.data.forward():
                self._selector.unregister(key.fileobj)
        self._reap()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._send(signal.SIGKILL)
            self._orphaned.clear()
            self._kill_at = None

    def _signalled(self, signum: int) -> None:
        if signum == signal.SIGCHLD:
            return
        again = self._kill_at is not None  # someone is in a hurry
        self._keep_going = False
        self._failure = self._failure or 128 + signum
        self._send(signal.SIGKILL if again else signum)
        self._kill_at = time.monotonic() + GRACE

    def _reap(self) -> None:
        ended = {rank for rank in self._running if self._processes[rank].poll() is not None}
        self._running -= ended
        self._orphaned |= ended
        failed = [rank for rank in ended if self._processes[rank].returncode]
        if self._keep_going:
            self._go_on(failed)
        elif failed and not self._reported:
            self._end(failed)
        # What ranks leave behind that end well is theirs.
        orphaned = set() if self._kill_at is None else self._orphaned
        self._orphaned = {rank for rank in orphaned if is_left(self._processes[rank])}

    def _go_on(self, failed: Sequence[int]) -> None:
        for rank in failed:
            self._report(rank)
            signal_all(self._processes[rank], signal.SIGKILL)  # a rank fails with all that it has started
            self._failure = self._failure or exit_code(self._processes[rank])
        codes = {process.returncode for process in self._processes}
        self._survived = 0 in codes and all(code is not None and code <= 0 for code in codes)

    def _end(self, failed: Sequence[int]) -> None:
        # A killed rank is the cause, one that raised at the same time its consequence.
        first = min(failed, key=lambda rank: (self._processes[rank].returncode > 0, rank))
        self._report(first)
        self._reported = True
        self._failure = exit_code(self._processes[first])
        if self._kill_at is None:
            self._send(signal.SIGTERM)
            self._kill_at = time.monotonic() + GRACE

    def _report(self, rank: int) -> None:
        print(f"gpucomm run: {describe_end(rank, self._processes[rank])}", file=sys.stderr, flush=True)

    def _send(self, signum: int) -> None:
        for rank in self._running | self._orphaned:
            signal_all(self._processes[rank], signum)
            signal_all(self._processes[rank], signal.SIGCONT)  # a stopped one acts only then

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
