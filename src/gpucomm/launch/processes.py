"""What `gpucomm run` and the worlds of fresh interpreters share: environment, ends, termination."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence

from gpucomm.launch.cores import threads_per_rank

__all__ = ["base_environment", "describe_end", "end_all", "exit_code", "rank_environment"]

Process = subprocess.Popen[bytes]

_TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment that ranks start from: with a place where torch.distributed would meet on this node.

    Args:
        environ: this process's. Where that is itself a rank of `gpucomm run` or `gpucomm.local`, what told
            its own rank and place is left out.
    """
    told = _TOLD if "GPUCOMM_RANK" in environ else ()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    return place | {name: value for name, value in environ.items() if name not in told}


def rank_environment(rank: int, world: int, job: str, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of one rank: `base`, the ranks' own variables, and usual ones where unset.

    Args:
        rank: of the process.
        world: number of ranks.
        job: key that the ranks of the job share.
        base: environment to start from.
    """
    usual = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": str(threads_per_rank(world)),
    }
    own = {"GPUCOMM_RANK": str(rank), "GPUCOMM_WORLD": str(world), "GPUCOMM_JOB": job}
    return {**usual, **base, **own}


def describe_end(rank: int, process: Process) -> str:
    """A clause such as "rank 2 (pid 123) ended with exit code 3"."""
    code = process.returncode
    who = f"rank {rank} (pid {process.pid})"
    if code is None:
        return f"{who} closed its connection"
    if code >= 0:
        return f"{who} ended with exit code {code}"
    try:
        return f"{who} was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"{who} was killed by signal {-code}"


def exit_code(process: Process) -> int:
    """The exit code as a shell gives it: 128 + signal for a killed process."""
    code = process.returncode or 0
    return code if code >= 0 else 128 - code


def end_all(processes: Sequence[Process], grace: float) -> None:
    """Terminate those that still run, kill those that run `grace` seconds later, and reap them."""
    for process in processes:
        # A stopped process acts on SIGTERM only once it is continued.
        for signum in (signal.SIGTERM, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signum)
    wait_all(processes, grace)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    wait_all(processes, grace)


def wait_all(processes: Sequence[Process], seconds: float) -> None:
    """Wait until all have ended, but no longer than `seconds`."""
    deadline = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
