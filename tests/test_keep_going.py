"""`gpucomm run --keep-going`: the ranks that are left shrink the communicator and end the job well."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.processes
LOST = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
SURVIVORS = """
import os, signal, sys
import numpy, gpucomm

comm = gpucomm.init()
if comm.rank == 1:
    exec(sys.argv[1])
try:
    comm.barrier()
except gpucomm.errors.PeerLostError:
    comm = comm.shrink(timeout=20)
    os.write(1, f"rank {comm.rank} of {comm.world}: {comm.all_reduce(numpy.ones(2))[1]}\\n".encode())
"""


def start(folder: Path, code: str, *args: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(code)
    command = [sys.executable, "-m", "gpucomm", "run", "-n", "3", "--keep-going", str(script), *args]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=jobs.environment(), stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize(
    ("failure", "code", "words"), [(LOST, 0, "was killed by SIGKILL"), ("os._exit(3)", 3, "exit code 3")]
)
def test_the_others_go_on_without_a_rank_that_fails(
    tmp_path: Path, failure: str, code: int, words: str
) -> None:
    with start(tmp_path, SURVIVORS, failure) as job:
        out, said = job.communicate(timeout=60)
    assert job.returncode == code, said
    assert sorted(out.splitlines()) == ["rank 0 of 2: 2.0", "rank 1 of 2: 2.0"]
    assert re.fullmatch(rf"gpucomm run: rank 1 \(pid \d+\) .*{words}\n", said), said


def test_a_rank_fails_with_all_that_it_has_started(tmp_path: Path) -> None:
    code = """
import os, signal
if os.environ["GPUCOMM_RANK"] == "1":
    signal.signal(signal.SIGALRM, lambda *_: os.write(1, b"left\\n"))
    if os.fork():
        os._exit(3)
    signal.alarm(20)
    signal.pause()
"""
    with start(tmp_path, code) as job:
        out, said = job.communicate(timeout=60)
    assert (job.returncode, out) == (3, ""), said


def test_all_that_fail_are_told(tmp_path: Path) -> None:
    with start(tmp_path, LOST) as job:
        said = job.communicate(timeout=60)[1]
    assert job.returncode == 128 + signal.SIGKILL and said.count("was killed by SIGKILL") == 3


def test_a_signal_ends_all(tmp_path: Path) -> None:
    code = "import os, signal, sys; os.write(1, b'up\\n'); signal.pause()"
    with start(tmp_path, code) as job:
        assert [job.stdout.readline() for _ in range(3)] == ["up\n"] * 3
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=60)
    assert job.returncode == 128 + signal.SIGTERM
