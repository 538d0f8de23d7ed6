"""A job of one rank on each of several hosts, which an MPI connects."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple

from gpucomm.errors import UnavailableError
from gpucomm.reproduce.cluster import Cluster, Mpi
from gpucomm.reproduce.run import Run

__all__ = ["Found", "on_hosts", "where_possible"]

_TIMEOUT_S = 120.0


class Found(NamedTuple):
    """What a job gave: each rank's result, and alpha and beta as the probe found them there."""

    by_rank: list[Any]
    alpha: float
    beta: float


def where_possible(run: Run, work: Callable[[], Any]) -> Any:
    """What `work` gives, which is done once a run; None where there can be no hosts, or the run is quick."""
    if run.quick or run.hurry > 1:
        return None
    return run.once("between hosts", lambda: _try(run, work))


def _try(run: Run, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except UnavailableError as error:
        run.left_out.append(f"rows between hosts: {error}")
        return None


def on_hosts(up: Cluster, mpi: Mpi, hosts: int, job: Callable[..., Any], *args: Any) -> Found:
    """Runs `job(comm, *args)` on the first hosts.

    Args:
        up: the hosts.
        mpi: what starts the ranks.
        hosts: how many.
        job: a function of a module.
        args: what JSON can carry; tuples arrive as lists.

    Raises:
        UnavailableError: it failed, or did not end in time.
    """
    out = up.folder / "found.json"
    text = json.dumps({"job": [job.__module__, job.__qualname__], "args": args, "out": str(out)})
    own = {"GPUCOMM_CACHE": "off", "OMP_NUM_THREADS": "1"}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [*up.mpiexec(mpi, hosts, 1), "-m", "gpucomm.reproduce.host_job", text]
    try:
        done = subprocess.run(
            command, env=os.environ | own | root, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
        if done.returncode:
            raise UnavailableError(f"the job of {hosts} hosts failed: {done.stderr.strip()[-500:]}")
        return Found(**json.loads(out.read_text()))
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"the job of {hosts} hosts did not end in {_TIMEOUT_S:g} s") from error
    finally:
        out.unlink(missing_ok=True)
