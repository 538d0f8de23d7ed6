"""Collectives through host memory, of threads on one GPU."""

import os
import subprocess
import sys
from pathlib import Path

from on_gpu import process_environment

PROGRAM = Path(__file__).parents[1] / "staged_threads.py"


def test_every_algorithm_through_host_memory():
    env = {**os.environ, **process_environment(GPUCOMM_DEVICE_TRANSPORT="staged")}
    done = subprocess.run([sys.executable, PROGRAM, "3000000"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
