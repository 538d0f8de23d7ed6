"""tools/gpu.sh, with a program in place of Python that writes down what it is asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path

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
