"""Every kind of kernel under compute-sanitizer, where that is and supports the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = str(Path(__file__).parent / "test_gpu_kernels.py")
ONCE = "float32 or (test_folds and sum)"  # one dtype of each, and all of the folds
FOUND = "9"


@pytest.mark.timeout(200)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_kernels(tool):
    """With each array a block of its own: what is written behind it is then seen."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("no compute-sanitizer in the PATH")
    command = [sanitizer, "--tool", tool, "--error-exitcode", FOUND, "--target-processes", "all"]
    command += ["--report-api-errors", "no"]  # who asks an event gets "not ready"
    command += [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", KERNELS, "-k", ONCE]
    env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180)
    said = (done.stdout + done.stderr)[-4000:]
    if "Device not supported" in said:
        pytest.skip("compute-sanitizer does not support this machine's device")
    assert done.returncode == 0, said
