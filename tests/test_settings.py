"""What must be the same on all ranks, and is not: all are told what, when they meet."""

from __future__ import annotations

import sys

import jobs
import pytest

pytestmark = pytest.mark.processes

# Sets the variable on rank 1 alone, then meets the others.
PROGRAM = """
import os, sys
kind, name, value, *more = sys.argv[1:]
rank = next(os.environ[n] for n in ("GPUCOMM_RANK", "PMI_RANK", "RANK") if n in os.environ)
if rank == "1":
    os.environ[name] = value
import gpucomm
from gpucomm import errors
try:
    if kind == "group":
        import torch.distributed as dist, gpucomm.optim
        dist.init_process_group("gpucomm")
    elif kind == "default":
        import torch.distributed as dist
        dist.init_process_group("gloo")
        for other in ("RANK", "WORLD_SIZE"):
            del os.environ[other]
        gpucomm.init(timeout=20)
    else:
        gpucomm.init(timeout=20)
except errors.MismatchError as error:
    print(error, flush=True)
os._exit(0)  # torch's own group would wait for the end of the others
"""
SETTINGS = {
    "GPUCOMM_NODES": ("0,1,0", "the nodes 0,1,0", "the nodes none"),
    "GPUCOMM_DETERMINISTIC": ("1", "deterministic=True", "deterministic=False"),
    "GPUCOMM_LINKS": ("switch:10Mbit", "the emulated links switch:10Mbit", "the emulated links none"),
}


def said_by(command: list[str], tmp_path, *arguments: str, **env: str) -> list[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    code, output, _ = jobs.wait_for([*command, str(program), *arguments], jobs.environment(**env), 60)
    assert code == 0, output
    return output.splitlines()


@pytest.mark.parametrize("name", SETTINGS)
def test_in_shared_memory(name, tmp_path):
    value, theirs, ours = SETTINGS[name]
    command = [sys.executable, "-m", "gpucomm", "run", "-n", "3"]
    lines = said_by(command, tmp_path, "init", name, value)
    assert len(lines) == 3
    assert all(f"was given {theirs}, rank 0 {ours}: give all ranks the same" in line for line in lines), lines


@pytest.mark.parametrize("name", ["GPUCOMM_NODES", "GPUCOMM_DETERMINISTIC"])
@pytest.mark.parametrize("launcher", ["mpich", "forks"])
def test_between_nodes(launcher, name, tmp_path):
    value, theirs, ours = SETTINGS[name]
    how = jobs.find(launcher)
    told = {"GPUCOMM_TRANSPORT": how.transport}
    lines = said_by(how.command(3, list(told)), tmp_path, "init", name, value, **told)
    for rank, given in enumerate([ours, theirs, ours]):
        (line,) = [line for line in lines if line.startswith(f"rank {rank} of 3 was given ")]
        assert given in line and "and rank 1 something else than rank 0" in line, lines


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", ["group", "default"])
def test_in_a_group_of_torch_distributed(kind, name, tmp_path):
    value, theirs, ours = SETTINGS[name]
    lines = said_by(jobs.find("forks").command(3, []), tmp_path, kind, name, value)
    for rank in range(3):
        said = f"were not given the same: rank 0 {ours}, rank 1 {theirs} (rank {rank} of 3)"
        assert any(said in line for line in lines), lines
