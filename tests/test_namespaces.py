"""Which ranks share a node is found by the kernel's boot id and the network and PID namespaces."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import jobs
import pytest

from gpucomm.launch import fabric

BOOT_ID = "/proc/sys/kernel/random/boot_id"
ANOTHER_ID = "01234567-89ab-cdef-0123-456789abcdef"
PID = ["--pid", "--fork", "--kill-child"]


def unshared(*words: str) -> list[str]:
    """What stands before a command to run it in other namespaces; or the test is skipped with the reason."""
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("other namespaces need root and unshare (util-linux)")
    command = ["unshare", *words]
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no such namespaces may be made here: {done.stderr.strip()}")
    return command


def on_another_kernel(folder: Path) -> list[str]:
    """The same, where the kernel's boot id seems to be another one."""
    (folder / "boot_id").write_text(ANOTHER_ID + "\n")
    return unshared("--mount", "sh", "-c", f'mount --bind {folder}/boot_id {BOOT_ID} && exec "$@"', "sh")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the kernel is made to say, by file."""
    said = {BOOT_ID: ANOTHER_ID} | {f"/proc/self/ns/{kind}": f"{kind}:[1]" for kind in ("net", "pid")}
    monkeypatch.setattr(fabric, "open", lambda file: io.StringIO(said[file]), raising=False)
    monkeypatch.setattr(os, "readlink", said.__getitem__)
    return said


def test_a_node_is_a_boot_id_and_two_namespaces(kernel: dict[str, str]) -> None:
    here = fabric.node_key()
    for file, told in kernel.copy().items():
        kernel[file] = told.replace("1", "2")
        assert fabric.node_key() != here, file
        kernel[file] = told
        assert fabric.node_key() == here


@pytest.mark.processes
def test_ranks_of_several_nodes_of_one_machine_find_out(tmp_path: Path) -> None:
    """Of ranks in other network namespaces test_hosts.py tells."""
    launcher = jobs.find("mpich")
    program = [launcher.python, jobs.PROGRAM, str(tmp_path), "place", "asynchronous"]
    ways = [[], unshared(*PID), on_another_kernel(tmp_path), [], unshared("--uts", "--ipc", "--mount")]
    command = [word for way in ways for word in (":", "-n", "1", *way, *program)]
    command[0] = launcher.mpiexec
    # For MPI itself would take them for ranks of one node.
    apart = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
    told = jobs.environment(GPUCOMM_TRANSPORT="mpi", **apart)
    code, output, _ = jobs.wait_for(command, told, 60)
    assert code == 0, output
    for report in jobs.reports(tmp_path, 5):
        assert report["place"][:2] == ["mpi", [0, 1, 2, 0, 0]]
        assert report["asynchronous"] == []


ALONE = """
import sys, gpucomm
try:
    gpucomm.init(timeout=float(sys.argv[1]))
except gpucomm.errors.Error as error:
    print(type(error).__name__, error)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "timeout", "kind", "said"),
    [
        (PID, "20", "MismatchError", ["rank 1 is in another PID namespace (its pid is "] * 2),
        (["--net"], "1", "CollectiveTimeoutError", ["ranks [1] did not", "rank 0, which did not come"]),
    ],
    ids=["pid", "net"],
)
def test_ranks_said_to_be_on_one_node_that_are_not_are_told(
    ranks: list[subprocess.Popen[str]], words: list[str], timeout: str, kind: str, said: list[str]
) -> None:
    job = {"GPUCOMM_WORLD": "2", "GPUCOMM_JOB": uuid.uuid4().hex}
    for rank, way in enumerate(([], unshared(*words))):
        command = [*way, sys.executable, "-c", ALONE, timeout]
        env = jobs.environment(**job, GPUCOMM_RANK=str(rank))
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        ranks.append(subprocess.Popen(command, env=env, text=True, **pipes))
    for process, sentence in zip(ranks, said, strict=True):
        out, err = process.communicate(timeout=40)
        assert out.startswith(kind) and sentence in out, (out, err)
