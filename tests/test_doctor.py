"""`gpucomm doctor` tells what is on, off and why, whatever is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpucomm import _core, cli, doctor
from gpucomm.doctor import devices, host, packages


def test_every_line_has_a_name_a_state_and_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    findings = doctor.examine()
    assert len(lines) == len(findings)
    column = max(len(finding.name) for finding in findings) + 2
    for line, finding in zip(lines, findings, strict=True):
        assert line[:column].rstrip() == finding.name
        assert line[column : column + 5].strip() == ("on" if finding.on else "off")
        assert line[column + 5 :].strip()


def test_json_has_what_the_core_registers(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    names = [f"transport {name}" for name in _core.transports()]
    names += [f"algorithm {name}" for name in _core.algorithms()]
    needed = {"transport mpi": "mpi4py", "transport c10d": "torch"}
    there = {name for name in names if name not in needed or importlib.util.find_spec(needed[name])}
    assert {name for name in names if rows[name]["on"]} == there
    assert _core.simd_level() in rows["SIMD"]["why"]
    assert rows["shared memory"]["on"] is True


def test_a_look_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Iterator[doctor.Finding]:
        raise OSError("no such thing here")

    monkeypatch.setattr(doctor, "_LOOKS", {"SIMD": broken})
    (finding,) = doctor.examine()
    assert (finding.name, finding.on) == ("SIMD", False)
    assert "no such thing here" in finding.why


def test_missing_packages_come_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find", lambda module: None)
    findings = {finding.name: finding for finding in doctor.examine()}
    for name, advice in (
        ("MPI", "gpucomm[mpi]"),
        ("transport mpi", "mpi4py"),
        ("transport c10d", "PyTorch"),
        ("torch", "gpucomm[torch]"),
        ("cloudpickle", "gpucomm[local]"),
        ("matplotlib", "gpucomm[bench]"),
        ("rich", "gpucomm[bench]"),
    ):
        assert not findings[name].on
        assert advice in findings[name].why


@pytest.mark.parametrize(("mib", "said"), [(3, "up to 2 MiB for each"), (1, "gpucomm.empty has none")])
def test_the_heap_that_was_asked_for(mib: int, said: str) -> None:
    command = [sys.executable, "-m", "gpucomm", "doctor"]
    env = {**os.environ, "GPUCOMM_HEAP_MIB": str(mib)}
    assert said in subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def test_paths_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {finding.name: finding for finding in doctor.examine()}
    assert found["shared heap"].on and "GiB for each of two ranks" in found["shared heap"].why
    assert found["cross-memory attach"].why.startswith(
        "allowed" if found["cross-memory attach"].on else "refused"
    )
    assert "shared memory: " in found["huge pages"].why
    monkeypatch.setenv("GPUCOMM_CMA", "0")
    (finding,) = doctor._LOOKS["cross-memory attach"]("cross-memory attach")
    assert (finding.on, finding.why) == (
        False,
        "switched off by GPUCOMM_CMA=0: long private arrays are staged",
    )


def test_a_refused_read_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No such process" in _core.read_process(2**22 + 1, 0, 8)
    refused = SimpleNamespace(stdout="process_vm_readv: Operation not permitted\n")
    monkeypatch.setattr(host, "ask", lambda code: refused)
    (finding,) = doctor._LOOKS["cross-memory attach"]("cross-memory attach")
    assert not finding.on and finding.why.endswith("process_vm_readv: Operation not permitted")


@pytest.mark.processes
@pytest.mark.parametrize("variable", ["GPUCOMM_SIMD", "GPUCOMM_SPIN_US", "GPUCOMM_HEAP_MIB"])
def test_a_wrong_variable_is_told_where_it_matters(variable: str) -> None:
    """The first reader of the environment is SIMD; what needs none of it stands."""
    done = subprocess.run(
        [sys.executable, "-m", "gpucomm", "doctor", "--json"],
        env={**os.environ, variable: "bogus"},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert set(rows) == {finding.name for finding in doctor.examine()}
    assert all(rows[name]["on"] for name in ("gpucomm", "Python", "cores", "shared memory"))
    assert not rows["SIMD"]["on"]
    assert variable in rows["SIMD"]["why"] and "could not be examined" not in rows["SIMD"]["why"]


@pytest.mark.parametrize(
    ("asked", "on", "words"),
    [
        ("nccl", True, "nccl: over NCCL (GPUCOMM_DEVICE_TRANSPORT: auto, arena, nccl, staged)"),
        ("staged", True, "staged: through page-locked memory of the hosts"),
        ("mpi", False, "GPUCOMM_DEVICE_TRANSPORT must be one of auto, arena, nccl, staged, got 'mpi'"),
    ],
)
def test_how_device_arrays_travel(monkeypatch: pytest.MonkeyPatch, asked: str, on: bool, words: str) -> None:
    monkeypatch.setenv("GPUCOMM_DEVICE_TRANSPORT", asked)
    (finding,) = doctor._LOOKS["device arrays"]("device arrays")
    assert finding.on is on and finding.why.startswith(words)


@pytest.mark.parametrize(
    ("unshared", "lacks", "words"),
    [
        ("", 0, "inside a node through memory that its processes share; between nodes over NCCL ("),
        ("", 1, "processes share; between nodes through host memory, as NCCL is off ("),
        ("cuda:0 shares no memory", 0, "inside a node through host memory, as cuda:0 shares no memory; "),
    ],
)
def test_which_way_is_chosen(monkeypatch: pytest.MonkeyPatch, unshared: str, lacks: int, words: str) -> None:
    answers = {devices._ABOUT_SHARING: (unshared, 0), devices._ABOUT_NCCL: ("", lacks)}
    monkeypatch.delenv("GPUCOMM_DEVICE_TRANSPORT", raising=False)
    monkeypatch.setattr(
        devices, "ask", lambda code: subprocess.CompletedProcess([], answers[code][1], answers[code][0])
    )
    (finding,) = doctor._LOOKS["device arrays"]("device arrays")
    assert finding.on and finding.why.startswith("auto: ") and words in finding.why


@pytest.mark.processes
def test_the_questions_are_answered() -> None:
    """Without a GPU there is nothing to say of one."""
    done = devices.ask(devices._ABOUT_SHARING)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.processes
def test_what_lies_in_the_current_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be another user's; what this process would import is found, gpucomm too."""
    planted, wanted = tmp_path / "planted", tmp_path / "a:b"
    planted.mkdir()
    wanted.mkdir()
    (planted / "which.py").write_text("name = 'planted'")
    (wanted / "which.py").write_text("name = 'wanted'")
    monkeypatch.chdir(planted)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry] + [str(wanted), None, tmp_path])
    done = devices.ask("import which, gpucomm; print(which.name)")
    assert (done.stdout, done.stderr) == ("wanted\n", "")


@pytest.mark.processes
def test_nccl_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOMM_NCCL_LIBRARY", "/nowhere/libnccl.so.2")
    (finding,) = doctor._LOOKS["NCCL"]("NCCL")
    assert not finding.on
    assert finding.why.startswith("NCCL cannot be loaded: /nowhere/libnccl.so.2")
    assert finding.why.endswith("(named by GPUCOMM_NCCL_LIBRARY)")


@pytest.mark.processes
def test_what_could_connect_nodes() -> None:
    """Where mpi4py is there, its MPI is named, or why it does not load."""
    findings = {finding.name: finding for finding in doctor.examine()}
    assert findings["torch.distributed"].on == findings["torch"].on
    if packages.find("mpi4py") is None:
        pytest.skip("mpi4py is not in this environment")
    mpi = findings["MPI"]
    words = ("mpi4py 4", "MPI", "thread level multiple") if mpi.on else ("does not load",)
    assert all(word in mpi.why for word in words), mpi.why


@pytest.mark.processes
def test_doctor_imports_nothing_big() -> None:
    code = (
        "import sys; from gpucomm import doctor; doctor.examine();"
        "print(sorted({'torch', 'mpi4py', 'cloudpickle'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_process_that_dies_without_a_word_is_told() -> None:
    assert packages.last_line("", -11) == "the process that asked said nothing: ended by SIGSEGV"
    assert packages.last_line("\n", 3) == "the process that asked said nothing: exit status 3"
    assert packages.last_line("first\nlast\n", 1) == "last"
