"""tools/cuda_gate.py: what it reads of ptxas, and that a spill fails it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN7gpucomm4cuda4foldIiEEvv' for 'sm_90'
ptxas info    : Function properties for _ZN7gpucomm4cuda4foldIiEEvv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers, 1416 bytes cmem[0]
ptxas info    : Compiling entry function '_ZN7gpucomm4cuda6encodeEv' for 'sm_75'
ptxas info    : Function properties for _ZN7gpucomm4cuda6encodeEv
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 400 bytes cmem[0]
"""


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).parent.parent / "tools" / "cuda_gate.py"
    spec = importlib.util.spec_from_file_location("cuda_gate", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "cuda_gate", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "find_nvcc", lambda: "nvcc")
    monkeypatch.setattr(module, "SOURCES", [Path("one.cu")])
    return module


def test_it_reads_every_kernel(gate: ModuleType) -> None:
    first, second = gate.kernels(LOG)
    assert (first.target, first.registers, first.stack_bytes, first.spill_bytes) == ("sm_90", 40, 0, 0)
    assert (second.target, second.registers, second.stack_bytes, second.spill_bytes) == ("sm_75", 255, 16, 20)
    assert "encode" in gate.readable([second.name])[0]


def test_a_spill_fails(gate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "compile_one", lambda nvcc, source: LOG)
    with pytest.raises(SystemExit, match=r"spill registers:\n.*255 registers.*encode.*: 20 bytes"):
        gate.main()


def test_no_spill_passes(
    gate: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = "\n".join(LOG.splitlines()[:5])
    monkeypatch.setattr(gate, "compile_one", lambda nvcc, source: kept)
    gate.main()
    assert "1 kernels for" in capsys.readouterr().out


def test_output_it_does_not_know_fails(gate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "compile_one", lambda nvcc, source: "nothing of the kind\n")
    with pytest.raises(SystemExit, match="ptxas told of no kernel"):
        gate.main()


def test_without_nvcc_it_says_so(
    gate: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "find_nvcc", lambda: None)
    monkeypatch.delenv("GPUCOMM_CUDA", raising=False)
    gate.main()
    assert "no nvcc here" in capsys.readouterr().out
    monkeypatch.setenv("GPUCOMM_CUDA", "ON")
    with pytest.raises(SystemExit, match="GPUCOMM_CUDA=ON"):
        gate.main()
