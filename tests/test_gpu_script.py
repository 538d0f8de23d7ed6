"""tools/gpu.sh, with a program in place of Python that writes down what it is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STUB = """#!/bin/sh
echo "$PYTHONPATH $*" >> {log}
echo "asked for $*"
echo "SKIPPED [1] a reason"
case "$*" in {fails}) exit 1;; esac
"""


def run(folder: Path, fails: str, *parts: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """How it ends where what matches `fails` does, and the commands."""
    stub, log = folder / "python", folder / "asked"
    stub.write_text(STUB.format(log=log, fails=fails))
    stub.chmod(0o755)
    command = [str(ROOT / "tools" / "gpu.sh"), str(stub), *parts]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OUT": str(folder)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    return done, log.read_text().splitlines() if log.exists() else []


def test_what_fails_does_not_stop_the_rest(tmp_path: Path) -> None:
    done, (build, *commands) = run(tmp_path, "*graphs*")
    assert "pip install" in build
    assert done.returncode == 1 and "test_gpu_graphs.py" in done.stdout and "device.py" not in done.stdout
    assert done.stdout.splitlines()[-1] == "failed: test_gpu_graphs"
    assert "\nSKIPPED [1] a reason\n" in done.stdout
    files = [f"tests/gpu/{path.name}" for path in (ROOT / "tests" / "gpu").glob("test_*.py")]
    assert sorted(files) == sorted(word for line in commands for word in line.split() if word in files)
    assert "benchmarks/device.py" in commands[-2] and "sanitizer" in commands[-1]
    assert all(line.startswith(f"{ROOT}/build/gpu -") for line in commands)
    with tarfile.open(tmp_path / "logs.tar.gz") as logs:
        logs.extractall(tmp_path, filter="data")
    parts = {"build", "benchmark", *(Path(file).stem for file in files)}
    assert {path.stem for path in tmp_path.glob("*.log")} == parts
    assert "asked for -u benchmarks/device.py" in (tmp_path / "benchmark.log").read_text()


def test_parts_that_are_named_run_alone(tmp_path: Path) -> None:
    done, (build, kernels, benchmark) = run(tmp_path, "nothing", "benchmark", "kernels")
    assert done.returncode == 0 and "pip install" in build
    assert "test_gpu_kernels.py" in kernels and "benchmarks/device.py" in benchmark


def test_a_part_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done, commands = run(tmp_path, "nothing", "benchmark", "kernel")
    assert done.returncode == 2 and not commands
    assert "no part kernel: the parts are benchmark bounded" in done.stderr


def test_it_passes_where_nothing_fails_and_ends_where_nothing_is_built(tmp_path: Path) -> None:
    assert run(tmp_path, "nothing")[0].returncode == 0
    (tmp_path / "asked").unlink()
    done, commands = run(tmp_path, "*pip*")
    assert done.returncode == 1 and len(commands) == 1
    assert "asked for -m pip" in done.stdout and done.stdout.splitlines()[-1] == "failed: build"


@pytest.mark.processes
def test_the_benchmark_runs_without_a_gpu(tmp_path: Path) -> None:
    """Every part of it but what asks torch; here no NCCL is found."""
    file = tmp_path / "host.json"
    command = [sys.executable, ROOT / "benchmarks" / "device.py", "--device", "host"]
    command += ["--mib", "1", "--repeats", "1", "--json", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    told = json.loads(file.read_text())
    assert told["errors"] == []
    names = {row["name"] for row in told["sizes"][0]["rows"]}
    assert {"reduce 8 x float32", "encode mpc", "all_reduce direct, 8 ranks, graph"} <= names
    assert "all_reduce ring, 4 processes, arena" in names
    steps = {row["name"]: row["steps"] for row in told["host"]}
    assert steps["all_reduce direct, 8 ranks"] == 1, "one kernel for all ranks"
    assert steps["all_reduce ring, 4 ranks"] == 6, "one in each round"


FAULTY = """
import sys
import device, device_kernels

def fail(*_):
    raise ZeroDivisionError("a fault of a section")
    yield

device_kernels._squares = fail  # a section of several
device.enqueuings = fail  # what makes the sections
device.processes = lambda *_: iter(())
device.main()
"""


@pytest.mark.processes
def test_an_error_in_one_section_leaves_the_rows_of_the_others(tmp_path: Path) -> None:
    """The exit status tells of it, and so does the file."""
    file = tmp_path / "host.json"
    command = [sys.executable, "-c", FAULTY, "--device", "host", "--mib", "1", "--repeats", "1"]
    path = os.pathsep.join([str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([*command, "--json", file], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "failed: sums of squares, 1 MiB; what calls take of the host"
    told = json.loads(file.read_text())
    assert [error["section"] for error in told["errors"]] == [
        "sums of squares, 1 MiB",
        "what calls take of the host",
    ]
    assert all("ZeroDivisionError: a fault of a section" in error["error"] for error in told["errors"])
    names = {row["name"] for row in told["sizes"][0]["rows"]}
    assert {"reduce 8 x float32", "encode mpc", "all_reduce direct, 8 ranks, graph"} <= names
    assert not {"norms of float32", "losses of float32"} & names
