"""Jobs of several processes under the launchers that users have: mpiexec of any MPI, torchrun.

And forks, ranks as torchrun's that start soon: for what is not about the launcher.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAM = str(Path(__file__).parent / "job_program.py")
FORKS = str(Path(__file__).parent / "torch_ranks.py")
OPENMPI = "GPUCOMM_TEST_OPENMPI"  # an interpreter with gpucomm, mpi4py and Open MPI
DEBIAN = "/usr/bin/python3", "/usr/bin/mpiexec.openmpi", "/usr/lib/python3/dist-packages/mpi4py"
# Runs a program of Debian's interpreter, which finds there what Debian has not installed itself.
_BESIDE = """
import os, runpy, site, sys
site.addsitedir(sys.argv[1])
sys.argv = sys.argv[2:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
FOREIGN = ("GPUCOMM_", "OMPI_", "PMI", "MPI_", "SLURM_", "TORCHELASTIC_", "MASTER_", "LOCAL_")


@dataclass(frozen=True)
class Launcher:
    """One way to start ranks.

    Attributes:
        name: mpich, openmpi, debian (its Open MPI and mpi4py), torchrun or forks.
        transport: what connects the nodes of its jobs.
        python: the ranks' interpreter.
    """

    name: str
    transport: str
    python: str

    def command(self, ranks: int, exported: Sequence[str]) -> list[str]:
        """What stands before the program."""
        if self.name == "torchrun":
            options = ["--standalone", "--nproc-per-node", str(ranks)]
            return [self.python, "-m", "torch.distributed.run", *options]
        if self.name == "forks":
            return [self.python, FORKS, str(ranks)]
        mpiexec = [self.mpiexec]
        if self.name != "mpich":
            mpiexec += ["--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"]
            mpiexec += [word for name in exported for word in ("-x", name)]
        return [*mpiexec, "-n", str(ranks), *self.interpreter]

    @property
    def mpiexec(self) -> str:
        """What starts ranks of its MPI."""
        return DEBIAN[1] if self.name == "debian" else str(Path(self.python).parent / "mpiexec")

    @property
    def interpreter(self) -> list[str]:
        """What stands before a program of a rank."""
        beside = ["-c", _BESIDE, sysconfig.get_path("purelib")]
        return [self.python, *(beside if self.name == "debian" else [])]


@dataclass(frozen=True)
class Ended:
    """A job that has ended.

    Attributes:
        code: the launcher's exit code.
        output: what all wrote, standard error too.
        reports: of each rank, by check; {} of one that has left none.
        seconds: how long it took.
    """

    code: int
    output: str
    reports: list[dict[str, Any]]
    seconds: float


def find(name: str) -> Launcher:
    """The launcher of this name, or the test is skipped with the reason."""
    if name in ("torchrun", "forks"):
        return Launcher(name, "c10d", sys.executable)
    if name == "mpich":
        if not (Path(sys.executable).parent / "mpiexec").exists() or not importlib.util.find_spec("mpi4py"):
            pytest.skip("mpi4py and mpich are not in this environment")
        return Launcher(name, "mpi", sys.executable)
    if name == "debian":
        return _debian()
    python = os.environ.get(OPENMPI, "")
    if not python:
        pytest.skip(f"{OPENMPI} names no interpreter (make test-mpi)")
    return Launcher(name, "mpi", os.path.abspath(python))


def _debian() -> Launcher:
    if missing := [file for file in DEBIAN if not os.path.exists(file)]:
        pytest.skip(f"not there: {', '.join(missing)} (apt-get install openmpi-bin python3-mpi4py)")
    asked = [DEBIAN[0], "-c", "import sysconfig; print(sysconfig.get_config_var('SOABI'))"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if found != sysconfig.get_config_var("SOABI"):
        pytest.skip(f"{DEBIAN[0]} is {found}, what is tested here is {sysconfig.get_config_var('SOABI')}")
    return Launcher("debian", "mpi", DEBIAN[0])


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without what a launcher set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    kept["GPUCOMM_CACHE"] = os.environ["GPUCOMM_CACHE"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
    return {k: v for k, v in kept.items() if k not in ("RANK", "WORLD_SIZE")} | root | extra


def run(
    launcher: Launcher, nodes: str, ranks: int, folder: Path, *checks: str, timeout: float = 100.0, **env: str
) -> Ended:
    """Run checks of job_program.py on some ranks, as if they were on several nodes."""
    told = {"GPUCOMM_TRANSPORT": launcher.transport, "GPUCOMM_NODES": nodes, **env}
    command = [*launcher.command(ranks, list(told)), PROGRAM, str(folder), *checks]
    code, output, seconds = wait_for(command, environment(**told), timeout)
    return Ended(code, output, reports(folder, ranks), seconds)


def wait_for(command: Sequence[str], env: dict[str, str], timeout: float) -> tuple[int, str, float]:
    """Run a command to its end; its exit code, its output and the seconds it took."""
    begin = time.monotonic()
    job = subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGTERM)  # the launcher ends its ranks
        try:
            output, _ = job.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            output, _ = job.communicate()
        pytest.fail(f"not ended after {timeout:g} s: {' '.join(command)}\n{output}")
    return job.returncode, output, time.monotonic() - begin


def reports(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """What the ranks have left in a folder."""
    files = [folder / f"{rank}.json" for rank in range(ranks)]
    return [json.loads(file.read_text()) if file.exists() else {} for file in files]


def leave(file: Path, report: dict[str, Any]) -> None:
    """Write a rank's report, whole or not at all: who reads it may be waiting for it."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(report))
    part.rename(file)
