"""Processes as ranks, each running one script, for tests that kill or stop them."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence

__all__ = ["end", "start"]


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


def end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Kill what is left and close the pipes."""
    for process in processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
