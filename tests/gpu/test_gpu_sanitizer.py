"""Every kind of kernel under compute-sanitizer, where that is and supports the machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = str(Path(__file__).parent / "test_gpu_kernels.py")
ONCE = "float32 or (test_folds and sum)"  # one dtype of each, and all of the folds
FOUND = "9"
LIMIT_S = int(os.environ.get("SANITIZER_LIMIT_S", "180"))


def run(command: list[str], log: Path) -> str:
    """Why it has failed, or nothing; its output becomes a file, which stays when its time is over."""
    env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"not ended after {LIMIT_S} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the program that it watches
        process.wait()
    return f"exit status {code}" if code else ""


@pytest.mark.timeout(LIMIT_S + 20)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_kernels(tool, tmp_path):
    """With each array a block of its own: what is written behind it is then seen."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("no compute-sanitizer in the PATH")
    command = [sanitizer, "--tool", tool, "--error-exitcode", FOUND, "--target-processes", "all"]
    command += ["--report-api-errors", "no"]  # who asks an event gets "not ready"
    command += [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", KERNELS, "-k", ONCE]
    why = run(command, tmp_path / "log")
    said = (tmp_path / "log").read_text(errors="replace")
    if "Device not supported" in said:
        pytest.skip("compute-sanitizer does not support this machine's device")
    assert not why, f"{why}: {said[:2000]} ... {said[-4000:]}"
