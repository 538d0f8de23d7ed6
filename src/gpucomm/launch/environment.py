"""Which rank this process is, read from what its launcher left in the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpucomm.errors import InvalidArgumentError
from gpucomm.launch.asked import asked_links, parse_nodes
from gpucomm.launch.ranks import Ranks

__all__ = ["detect"]

Environ = Mapping[str, str]

_MOST = 2**31 - 1


def detect(environ: Environ, ancestor: Callable[[str], str] | None = None) -> Ranks:
    """Find the rank of this process.

    Args:
        environ: the environment, usually `os.environ`.
        ancestor: makes the job key where the launcher sets none, from the name of a variable that it
            sets; the default identifies the launcher's process.

    Returns:
        The first of: GPUCOMM_RANK, RANK (torchrun, accelerate, by hand), Open MPI, MPICH and its kin,
        a SLURM step of several tasks, else one rank alone. With what GPUCOMM_LINKS, GPUCOMM_TRANSPORT and
        GPUCOMM_NODES say, if set, and GPUCOMM_JOB in the key too.

    Raises:
        InvalidArgumentError: a variable is missing, is not a number, is out of range or means nothing.
    """
    ancestor = ancestor or _launcher_process
    found = (reader(environ, ancestor) for reader in (_gpucomm, _torchrun, _openmpi, _mpich, _slurm))
    ranks = next((ranks for ranks in found if ranks), None) or Ranks(0, 1, "alone", "alone")
    transport = environ.get("GPUCOMM_TRANSPORT") or ranks.transport
    if transport not in ("shm", "mpi", "c10d"):
        raise InvalidArgumentError(f"GPUCOMM_TRANSPORT={transport!r} must be shm, mpi or c10d")
    if ranks.source == "environment" and ranks.world > 1 and transport == "shm":
        _require_key(environ)
    nodes = parse_nodes(environ.get("GPUCOMM_NODES", ""), ranks.world)
    links = asked_links(environ, ranks.world, nodes)
    extra = environ.get("GPUCOMM_JOB", "") if ranks.source not in ("gpucomm", "alone") else ""
    job = f"{ranks.job}/{extra}" if extra else ranks.job
    return replace(ranks, job=job, links=links, transport=transport, nodes=nodes)


def _gpucomm(environ: Environ, ancestor: Callable[[str], str]) -> Ranks | None:
    if not _has_any(environ, "GPUCOMM_RANK", "GPUCOMM_WORLD"):
        return None
    if not environ.get("GPUCOMM_JOB"):
        raise InvalidArgumentError(
            "GPUCOMM_JOB is not set but GPUCOMM_RANK or GPUCOMM_WORLD is: the three belong together;"
            " GPUCOMM_JOB is any text that the ranks of one job share"
        )
    return _ranks(environ, ("GPUCOMM_RANK", "GPUCOMM_WORLD", "", ""), environ["GPUCOMM_JOB"], "gpucomm")


def _torchrun(environ: Environ, ancestor: Callable[[str], str]) -> Ranks | None:
    if not _has_any(environ, "RANK", "WORLD_SIZE"):
        return None
    if not environ.get("RANK"):
        raise InvalidArgumentError(
            "RANK is not set but WORLD_SIZE is: the two belong together; where a framework has started this"
            " process, call init() when it has initialised torch.distributed"
        )
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    job = ":".join(environ.get(name, "") for name in names)
    source = "torchrun" if "TORCHELASTIC_RUN_ID" in environ else "environment"
    ranks = _ranks(environ, ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), job, source)
    if ranks.world == 1 or _has_any(environ, "MASTER_PORT", "TORCHELASTIC_RUN_ID"):
        return ranks
    # Set for torch, which was told elsewhere where to meet: the launcher itself has a key.
    return _openmpi(environ, ancestor) or _mpich(environ, ancestor) or _slurm(environ, ancestor) or ranks


def _require_key(environ: Environ) -> None:
    if not environ.get("MASTER_PORT"):
        raise InvalidArgumentError(
            "RANK and WORLD_SIZE are set, but not MASTER_PORT, which tells this job from others: set it to"
            " one number on all ranks, or GPUCOMM_RANK, GPUCOMM_WORLD and GPUCOMM_JOB in place of these"
        )


def _openmpi(environ: Environ, ancestor: Callable[[str], str]) -> Ranks | None:
    prefix = "OMPI_COMM_WORLD_"
    if not _has_any(environ, prefix + "RANK", prefix + "SIZE"):
        return None
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or ancestor(prefix + "RANK")
    names = (prefix + "RANK", prefix + "SIZE", prefix + "LOCAL_RANK", prefix + "LOCAL_SIZE")
    return _ranks(environ, names, job, "openmpi")


def _mpich(environ: Environ, ancestor: Callable[[str], str]) -> Ranks | None:
    if not _has_any(environ, "PMI_RANK", "PMI_SIZE"):
        return None
    if environ.get("SLURM_PROCID") and not environ.get("MPI_LOCALNRANKS"):
        return None  # of srun --mpi=pmi2, which tells more itself
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    return _ranks(environ, names, ancestor("PMI_RANK"), "mpich")


def _slurm(environ: Environ, ancestor: Callable[[str], str]) -> Ranks | None:
    # The shells of salloc and sbatch carry SLURM_NTASKS too, but only srun's tasks are in a step.
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID")
    if not step or not environ.get("SLURM_PROCID"):
        return None
    tasks = "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    if _number(environ, tasks, "SLURM_PROCID") == 1:
        return None
    nodes = "SLURM_STEP_NUM_NODES" if environ.get("SLURM_STEP_NUM_NODES") else "SLURM_NNODES"
    job = f"{environ.get('SLURM_JOB_ID', '')}.{step}"
    ranks = _ranks(environ, ("SLURM_PROCID", tasks, "SLURM_LOCALID", ""), job, "slurm")
    if environ.get(nodes) and _number(environ, nodes) > 1:
        return replace(ranks, transport="mpi")
    return ranks


def _ranks(environ: Environ, names: tuple[str, str, str, str], job: str, source: str) -> Ranks:
    """Read and check; local variables that are not there mean that all ranks are on this node."""
    rank_name, world_name, local_name, local_world_name = names
    rank = _number(environ, rank_name, world_name)
    world = _number(environ, world_name, rank_name)
    if not rank < world:
        raise InvalidArgumentError(f"{rank_name}={rank} must be below {world_name}={world}")
    local_world = _number(environ, local_world_name) if environ.get(local_world_name) else world
    local_rank = _number(environ, local_name) if environ.get(local_name) else rank
    if local_world > world or not local_rank < local_world:
        raise InvalidArgumentError(
            f"local rank {local_rank} of {local_world} does not fit rank {rank} of {world}"
            f" ({local_name or rank_name}, {local_world_name or world_name})"
        )
    between = "c10d" if source in ("torchrun", "environment") else "mpi"
    return Ranks(rank, world, job, source, transport=between if local_world < world else "shm")


def _has_any(environ: Environ, *names: str) -> bool:
    return any(environ.get(name) for name in names)


def _number(environ: Environ, name: str, partner: str = "") -> int:
    text = environ.get(name, "").strip()
    if not text:
        raise InvalidArgumentError(f"{name} is not set but {partner} is: the two belong together")
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or int(text) > _MOST:
        raise InvalidArgumentError(f"{name}={text!r:.60} must be a whole number from 0 to {_MOST}")
    return int(text)


def _launcher_process(variable: str) -> str:
    """Identify the nearest ancestor that does not carry `variable`: it set it, for all ranks of this node.

    A wrapper script between launcher and rank carries the variable, so it is passed over.
    """
    pid = os.getppid()
    while pid > 1 and _carries(pid, variable):
        pid = int(_stat(pid)[1])
    if not pid:  # it is outside of this PID namespace, and only there somebody could look for it
        return "0"
    try:
        # The start time tells a launcher from a later process with the same pid.
        return f"{pid}:{_stat(pid)[19]}"
    except OSError:  # another user's, and hidden (hidepid)
        return str(pid)


def _carries(pid: int, variable: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(entry.startswith(f"{variable}=".encode()) for entry in file.read().split(b"\0"))
    except OSError:
        return False


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on: 1 is the parent, 19 the start time."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()
