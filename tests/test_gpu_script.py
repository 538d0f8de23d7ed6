"""tools/gpu.sh, with a program in place of Python that writes down what it is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STUB = """#!/bin/sh
echo "$PYTHONPATH $*" >> {log}
case "$*" in {fails}) exit 1;; esac
"""


def run(folder: Path, fails: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """How it ends where what matches `fails` does, and the commands."""
    stub, log = folder / "python", folder / "log"
    stub.write_text(STUB.format(log=log, fails=fails))
    stub.chmod(0o755)
    command = [str(ROOT / "tools" / "gpu.sh"), str(stub)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done, log.read_text().splitlines()


def test_what_fails_does_not_stop_the_rest(tmp_path: Path) -> None:
    done, (build, *commands) = run(tmp_path, "*graphs*")
    assert "pip install" in build
    assert done.returncode == 1 and "test_gpu_graphs.py" in done.stdout and "device.py" not in done.stdout
    files = [f"tests/gpu/{path.name}" for path in (ROOT / "tests" / "gpu").glob("test_*.py")]
    assert sorted(files) == sorted(word for line in commands for word in line.split() if word in files)
    assert "benchmarks/device.py" in commands[-2] and "sanitizer" in commands[-1]
    assert all(line.startswith(f"{ROOT}/build/gpu -") for line in commands)


def test_it_passes_where_nothing_fails_and_ends_where_nothing_is_built(tmp_path: Path) -> None:
    assert run(tmp_path, "nothing")[0].returncode == 0
    (tmp_path / "log").unlink()
    done, commands = run(tmp_path, "*pip*")
    assert done.returncode == 1 and len(commands) == 1


@pytest.mark.processes
def test_the_benchmark_runs_without_a_gpu(tmp_path: Path) -> None:
    """Every part of it but what asks torch; here no NCCL is found."""
    file = tmp_path / "host.json"
    command = [sys.executable, ROOT / "benchmarks" / "device.py", "--device", "host"]
    command += ["--mib", "1", "--repeats", "1", "--json", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    told = json.loads(file.read_text())
    names = {row["name"] for row in told["sizes"][0]["rows"]}
    assert {"reduce 8 x float32", "encode zfp:8", "all_reduce direct, 8 ranks, graph"} <= names
    assert "all_reduce ring, 4 processes, arena" in names
    steps = {row["name"]: row["steps"] for row in told["host"]}
    assert steps["all_reduce direct, 8 ranks"] == 8, "one kernel a rank"
    assert steps["all_reduce ring, 4 ranks"] == 4 * 6, "a fold or a copy for each rank and round"
