"""What `gpucomm run` and the worlds of fresh interpreters share: environment, ends, termination."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

from gpucomm.errors import UnavailableError
from gpucomm.launch.cores import threads_per_rank

__all__ = [
    "POLL",
    "base_environment",
    "describe_end",
    "end_all",
    "exit_code",
    "is_left",
    "rank_environment",
    "signal_all",
    "starting",
    "wait_all",
]

POLL = 0.02  # seconds between two looks at what processes have started, of whose end nobody is told

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


@contextlib.contextmanager
def starting(rank: int, world: int) -> Iterator[None]:
    """Tells of a rank that cannot be started.

    Raises:
        UnavailableError: there are too few descriptors or processes left, say.
    """
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"rank {rank} of {world} cannot be started: {error.strerror or error}"
            " (ulimit -n and ulimit -u tell the limits)"
        ) from error


def signal_all(process: Process, signum: int) -> bool:
    """Signal a process that leads a group, and what it has started there.

    The group's number is nobody else's until the process is reaped, nor later while the group has members;
    nor soon after, since the kernel first gives out all others.

    Args:
        process: the leader, of whose group something was left a moment ago.
        signum: of the signal; 0: look only.

    Returns:
        Whether anything is left that we may signal.
    """
    try:
        os.killpg(process.pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def is_left(process: Process) -> bool:
    """Whether it runs, or something that it has started; it is reaped where it has ended."""
    return process.poll() is None or signal_all(process, 0)


def end_all(processes: Sequence[Process], grace: float) -> None:
    """Terminate those that still run, with what they have started; kill what is left `grace` seconds later.

    Args:
        processes: leaders of groups; they are reaped.
        grace: seconds.
    """
    left = [process for process in processes if process.poll() is None]
    for process in left:
        signal_all(process, signal.SIGTERM)
        signal_all(process, signal.SIGCONT)  # a stopped one acts only then
    deadline = time.monotonic() + grace
    while (left := [process for process in left if is_left(process)]) and time.monotonic() < deadline:
        time.sleep(POLL)
    for process in left:
        signal_all(process, signal.SIGKILL)
    wait_all(left, grace)


def wait_all(processes: Sequence[Process], seconds: float) -> None:
    """Wait until all have ended, but no longer than `seconds`."""
    deadline = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
