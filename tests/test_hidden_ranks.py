"""Ranks that /proc does not show, or shows by another clock, live as long as they do."""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
import uuid

import jobs
import pytest
from test_namespaces import unshared

from gpucomm import Communicator, _core

pytestmark = pytest.mark.processes

SCRIPT = """
import json, sys, time
import gpucomm
comm = gpucomm.init(timeout=20)
comm.barrier()
if comm.rank:
    print("started", flush=True)
    sys.stdin.readline()
try:
    comm.barrier()
    print(json.dumps(["passed", ""]), flush=True)
except gpucomm.errors.Error as error:
    print(json.dumps([type(error).__name__, str(error)]), flush=True)
"""
LOOKS_S = 0.3  # in which a rank that waits looks at the others several times
NO_PROC = ["--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
ANOTHER_CLOCK = ["--time", "--fork", "--kill-child", "--boottime", "1000", "--monotonic", "1000"]


def start(ranks: list[subprocess.Popen[str]], *ways: list[str]) -> None:
    job = {"GPUCOMM_WORLD": str(len(ways)), "GPUCOMM_JOB": uuid.uuid4().hex}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    for rank, way in enumerate(ways):
        command = [*way, sys.executable, "-c", textwrap.dedent(SCRIPT)]
        env = jobs.environment(**job, GPUCOMM_RANK=str(rank))
        ranks.append(subprocess.Popen(command, env=env, text=True, **pipes))
    assert ranks[1].stdout is not None and ranks[1].stdout.readline() == "started\n"
    time.sleep(LOOKS_S)  # rank 0 waits


def told(process: subprocess.Popen[str], line: str = "\n") -> list[str]:
    out, err = process.communicate(line, timeout=30)
    assert process.returncode == 0, err
    said: list[str] = json.loads(out.splitlines()[-1])
    return said


@pytest.mark.parametrize("ways", [(NO_PROC, NO_PROC), ([], NO_PROC), ([], ANOTHER_CLOCK)])
def test_a_rank_that_is_late_is_not_gone(
    ranks: list[subprocess.Popen[str]], ways: tuple[list[str], list[str]]
) -> None:
    start(ranks, *(unshared(*way) if way else [] for way in ways))
    assert told(ranks[1])[0] == told(ranks[0])[0] == "passed"


def test_where_proc_is_not_there_a_killed_rank_is_still_found(ranks: list[subprocess.Popen[str]]) -> None:
    start(ranks, unshared(*NO_PROC), unshared(*NO_PROC))
    ranks[1].send_signal(signal.SIGKILL)
    ranks[1].wait()
    killed = time.monotonic()
    kind, text = told(ranks[0])
    assert kind == "PeerLostError" and f"rank 1 is gone (pid {ranks[1].pid} has ended)" in text
    assert time.monotonic() - killed < 10, "it took as long as a timeout"


def test_another_process_of_that_number_is_not_read() -> None:
    """As where two ranks number processes differently: what lies there is not what the rank has told."""
    told = []
    for changed in (0, 1):
        memory = _core.shm_create(2)
        first, second = (Communicator("shm", rank, 2, fd=memory, timeout=20) for rank in range(2))
        with mmap.mmap(memory, 0) as shared:
            cookie = shared.find(struct.pack("q", os.getpid())) + 3 * 8  # of rank 0
            struct.pack_into("Q", shared, cookie, struct.unpack_from("Q", shared, cookie)[0] ^ changed)
        os.close(memory)
        for work in [comm.barrier(async_op=True) for comm in (first, second)]:
            work.wait()
        told.append(first.readers[1])
    if told[0]:
        pytest.skip(f"processes may not read each other here: {told[0]}")
    assert told[1] == "the kernel refused it"
