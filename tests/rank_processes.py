"""Processes as ranks, each running one script, for tests that kill or stop them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ranks import PROMPT_S

__all__ = ["end", "keep_calling", "kill_one", "leave", "left_since", "litter", "start", "told_at_the_end"]


def start(script: str, environments: Sequence[Mapping[str, str]]) -> list[subprocess.Popen[str]]:
    """Start a rank for each environment, which is added to what makes it a rank of one job."""
    job = {"GPUCOMM_WORLD": str(len(environments)), "GPUCOMM_JOB": uuid.uuid4().hex, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, **job, "GPUCOMM_RANK": str(rank), **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, own in enumerate(environments)
    ]


def leave(error: Exception, comm: Any) -> NoReturn:
    """In a script: tell how its communicator ended, and end the process at once.

    An interpreter that goes on to its end gives memory back that a device's thread may still read.
    """
    print(json.dumps([type(error).__name__, str(error), comm.closed]), flush=True)
    os._exit(0)


def keep_calling(comm: Any, issue: Callable[[], tuple[Any, Any]], wait: bool, most: int = -1) -> None:
    """In a script: make calls until one fails, whose error it leaves with; "started" is said after five.

    `issue` gives a call's work and what must be kept until the next one; `wait`: the host waits for each;
    `most`: so many calls at most.
    """
    from gpucomm.errors import Error

    calls = 0
    try:
        while calls != most:
            work, _kept = issue()
            work.synchronize() if wait else work.wait()
            calls += 1
            if calls == 5:
                print("started", flush=True)
    except Error as error:
        leave(error, comm)


def told_at_the_end(process: subprocess.Popen[str]) -> list[Any]:
    """Return what a process told by `leave`."""
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    told: list[Any] = json.loads(out.splitlines()[-1])
    return told


def kill_one(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Kill rank 1 of those that have said "started"; the others must name it soon and close."""
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
    processes[1].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    for process in (processes[0], *processes[2:]):
        kind, text, closed = told_at_the_end(process)
        assert kind == "PeerLostError" and "rank 1 is gone" in text and closed, (kind, text, closed)
    assert time.monotonic() - killed < PROMPT_S, "it took as long as a timeout"


def litter() -> set[str]:
    """Return what there is of gpucomm on this machine: files in /dev/shm and /tmp, sockets."""
    files = {str(p) for folder in ("/dev/shm", "/tmp") for p in Path(folder).iterdir() if "gpucomm" in p.name}
    sockets = Path("/proc/net/unix").read_text().splitlines()
    return files | {line.split()[-1] for line in sockets if "@gpucomm" in line}


def left_since(before: set[str]) -> set[str]:
    """Return what has come since and stays; what jobs of other tests made meanwhile goes with them."""
    left = litter() - before
    deadline = time.monotonic() + 30
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left &= litter()
    return left


def end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Kill what is left and close the pipes."""
    for process in processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
