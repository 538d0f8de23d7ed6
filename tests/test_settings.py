"""What must be the same on all ranks, and is not: all are told what, when they meet."""

from __future__ import annotations

import sys
from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.processes

# Sets the variable on rank 1 alone, then meets the others, and leaves what it was told.
PROGRAM = """
import os, sys, time
from pathlib import Path
kind, folder, world, name, value = sys.argv[1:]
rank = next(os.environ[n] for n in ("GPUCOMM_RANK", "PMI_RANK", "RANK") if n in os.environ)
if rank == "1":
    os.environ[name] = value
import gpucomm
from gpucomm import errors
try:
    if kind == "group":
        import torch.distributed as dist, gpucomm.optim.process_group
        dist.init_process_group("gpucomm")
    elif kind == "default":
        import torch.distributed as dist
        dist.init_process_group("gloo")
        for other in ("RANK", "WORLD_SIZE"):
            del os.environ[other]
    gpucomm.init(timeout=20)
except errors.Error as error:
    Path(folder, rank).write_text(f"{type(error).__name__}: {error}")
time.sleep(2 * (kind == "init" and rank == "0"))  # torch's store, if it has that, must last
if kind == "default":
    os._exit(0)  # torch's own group would wait for the end of the others
"""
SETTINGS = {
    "GPUCOMM_NODES": ("{world}x1", "the nodes 0,1", "the nodes none"),
    "GPUCOMM_DETERMINISTIC": ("1", "deterministic=True", "deterministic=False"),
    "GPUCOMM_LINKS": ("switch:10Mbit", "the emulated links switch,", "the emulated links none"),
}


def told(kind: str, command: list[str], world: int, name: str, tmp_path: Path, **env: str) -> list[str]:
    """What each rank was told."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    arguments = [kind, str(tmp_path), str(world), name, SETTINGS[name][0].format(world=world)]
    code, output, _ = jobs.wait_for([*command, str(program), *arguments], jobs.environment(**env), 60)
    assert code == 0, output
    return [(tmp_path / str(rank)).read_text() for rank in range(world)]


@pytest.mark.parametrize("name", SETTINGS)
def test_in_shared_memory(name, tmp_path):
    _, theirs, ours = SETTINGS[name]
    for said in told("init", [sys.executable, "-m", "gpucomm", "run", "-n", "2"], 2, name, tmp_path):
        assert said.startswith("MismatchError: rank 1 (pid "), said
        assert f" was given {theirs}" in said and f", rank 0 {ours}: give all ranks the same" in said


@pytest.mark.parametrize(
    ("launcher", "name"), [("mpich", "GPUCOMM_NODES"), ("forks", "GPUCOMM_DETERMINISTIC")]
)
def test_between_nodes(launcher, name, tmp_path):
    _, theirs, ours = SETTINGS[name]
    how = jobs.find(launcher)
    env = {"GPUCOMM_TRANSPORT": how.transport}
    for rank, said in enumerate(told("init", how.command(3, list(env)), 3, name, tmp_path, **env)):
        assert said.startswith(f"MismatchError: rank {rank} of 3 was given "), said
        assert (theirs if rank == 1 else ours) in said and "and rank 1 something else than rank 0" in said


@pytest.mark.parametrize(("kind", "name"), [("group", "GPUCOMM_LINKS"), ("default", "GPUCOMM_NODES")])
def test_in_a_group_of_torch_distributed(kind, name, tmp_path):
    _, theirs, ours = SETTINGS[name]
    for rank, said in enumerate(told(kind, jobs.find("forks").command(3, []), 3, name, tmp_path)):
        assert said.startswith("MismatchError: ") and said.endswith(f"(rank {rank} of 3)"), said
        assert f" were not given the same: rank 0 {ours}, rank 1 {theirs}" in said
