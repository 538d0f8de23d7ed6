"""MPI libraries as peers: each repetition is a small job of theirs, between our own repetitions.

Such a peer's file has VARIANTS, its names, arguments of mpiexec and environments, with the default first, and
MARK, a word of its version text.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpucomm.errors import CollectiveTimeoutError, InvalidArgumentError, RankFailedError, UnavailableError
from gpucomm.launch.cores import usable_cores

__all__ = ["HUGE_PAGES", "Mpi", "Outcome", "Variant", "check"]

_DTYPES = ("float64", "float32", "int64", "int32", "int16", "int8", "uint8")
_START = 30.0  # seconds that a job may take beyond its calls
# malloc keeps what it has been given back, on huge pages: else each call of these libraries pays for fresh
# pages from 32 MiB on.
HUGE_PAGES = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "268435456",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


@dataclass(frozen=True)
class Variant:
    """One way to start the library.

    Attributes:
        arguments: of mpiexec.
        environment: variables beside the present ones.
        collectives: which it is for; empty: all.
    """

    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    collectives: Sequence[str] = ()


@dataclass(frozen=True)
class Outcome:
    """What one small job found: seconds a call, and whether every rank's result was right."""

    time_s: float
    correct: bool


def check(dtype: str) -> None:
    """Whether mpi4py has the dtype.

    Raises:
        InvalidArgumentError: it has not.
    """
    if dtype not in _DTYPES:
        raise InvalidArgumentError(f"mpi4py does not take {dtype}; it takes {', '.join(_DTYPES)}")


class Mpi:
    """An MPI library and the interpreter that has it.

    Args:
        name: of the peer.
        mark: a word of the library's version text, so that another MPI does not run under this name.
        variants: the ways to start it.
        python: an interpreter with mpi4py, its mpiexec beside it or on the PATH; None: this one.
        folder: for the library's temporary files.
    """

    transport = "mpi"

    def __init__(
        self, name: str, mark: str, variants: Mapping[str, Variant], python: str | None, folder: str
    ) -> None:
        self.name, self._mark, self._variants, self._folder = name, mark, variants, folder
        self._python = Path(python or sys.executable).absolute()
        beside = self._python.parent / "mpiexec"
        self._mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
        if not self._python.exists() or not self._mpiexec:
            missing = self._python if not self._python.exists() else f"mpiexec (for {self._python})"
            raise UnavailableError(
                f"{name} cannot be started: there is no {missing}; give --peer-python {name}=PATH, the "
                f"python of an environment with `pip install {name} mpi4py numpy`"
            )

    def run(self, variant: str, ranks: int, job: Mapping[str, object], timeout: float) -> Outcome:
        """Runs one small job.

        Raises:
            RankFailedError: it failed; the text has what it wrote.
            CollectiveTimeoutError: it did not end.
            UnavailableError: it is another MPI.
        """
        how = self._variants[variant]
        script = str(Path(__file__).with_name("mpi_job.py"))
        oversubscribed = ["--oversubscribe"] if self.name == "openmpi" and ranks > usable_cores() else []
        command = [str(self._mpiexec), "-n", str(ranks), *oversubscribed, *how.arguments]
        command += [str(self._python), script, json.dumps(job)]
        text = self._start(
            command, {**os.environ, **self._environment(), **how.environment}, timeout + _START
        )
        found = json.loads(text.splitlines()[-1])
        if self._mark not in found["version"] or found["ranks"] != ranks:
            raise UnavailableError(
                f"{self._mpiexec} with {self._python} is no {self.name} of {ranks} ranks: it says "
                f"{found['version'].splitlines()[0]!r} with {found['ranks']}"
            )
        return Outcome(found["time_s"], found["correct"])

    def _environment(self) -> dict[str, str]:
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {"OMP_NUM_THREADS": "1", "TMPDIR": self._folder, **root}

    def _start(self, command: list[str], environment: dict[str, str], timeout: float) -> str:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise CollectiveTimeoutError(f"{self.name}'s job did not end within {timeout:g} s") from None
        finally:
            if process.poll() is None:
                _end(process)
        if process.returncode:
            raise RankFailedError(f"{self.name}'s job ended with {process.returncode}: {err[-2000:]}", 0)
        return out


def _end(process: subprocess.Popen[str]) -> None:
    """Ends mpiexec, which ends its ranks; and them, if it does not."""
    process.terminate()
    try:
        process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # who has left the session may hold the pipe
            process.communicate(timeout=5)
