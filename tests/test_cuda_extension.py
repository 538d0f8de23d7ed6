"""The extension _cuda where there is no GPU: it imports, and every entry says what is missing."""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from compiled import shared_object

import gpucomm
from gpucomm import _core, cuda, doctor
from gpucomm.errors import UnavailableError

ROOT = Path(__file__).parent.parent

needs_extension = pytest.mark.skipif(not cuda.is_built(), reason="gpucomm was built without CUDA")


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    cuda.why_not.cache_clear()
    yield
    cuda.why_not.cache_clear()


def ask(folder: Path, code: str, **environment: str) -> str:
    """What a process prints, in which `folder` has the driver."""
    path = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    env = {**os.environ, "LD_LIBRARY_PATH": path, **environment}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def without_driver(tmp_path: Path) -> Path:
    """A file of the driver's name hides the machine's own, and is none."""
    (tmp_path / "libcuda.so.1").touch()
    return tmp_path


@pytest.fixture(scope="session")
def false_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = ROOT / "tests" / "cuda_programs" / "driver.cpp"
    return shared_object(tmp_path_factory, "libcuda.so.1", [source]).parent


WHY = "from gpucomm import _cuda; print(_cuda.unavailable())"


@needs_extension
@pytest.mark.processes
def test_no_driver(without_driver: Path) -> None:
    assert ask(without_driver, WHY).startswith("no NVIDIA driver is installed here")
    versions = "from gpucomm import _cuda; print(_cuda.driver_version(), _cuda.runtime_version() >= 12000)"
    assert ask(without_driver, versions) == "0 True"


@needs_extension
@pytest.mark.processes
@pytest.mark.parametrize("entry", ["device_count()", "device_name(0)", "open_device(0)", "open_device(-1)"])
def test_every_entry_raises_without_a_driver(without_driver: Path, entry: str) -> None:
    code = (
        "from gpucomm import _cuda, errors\n"
        f"try: _cuda.{entry}\n"
        "except errors.UnavailableError as error: print(error)"
    )
    assert ask(without_driver, code).startswith("CUDA cannot be used: no NVIDIA driver")


@needs_extension
@pytest.mark.processes
@pytest.mark.parametrize(
    ("version", "init", "visible", "words"),
    [
        ("11040", "0", None, "driver is too old: it is for CUDA 11.4, gpucomm was built with CUDA 1"),
        ("99000", "100", None, "the NVIDIA driver, for CUDA 99.0, sees no GPU"),
        ("99000", "0", "7", "sees no GPU (CUDA_VISIBLE_DEVICES is '7')"),
        ("99000", "3", None, "a process forked from one that used CUDA cannot use it"),
        ("99000", "802", None, "(cudaErrorSystemNotReady); is the fabric manager"),
    ],
)
def test_a_driver_that_does_not_do(
    false_driver: Path, version: str, init: str, visible: str | None, words: str
) -> None:
    environment = {"FAKE_DRIVER": version, "FAKE_INIT": init}
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    assert words in ask(false_driver, WHY, **environment)


@needs_extension
@pytest.mark.processes
def test_import_calls_nothing_of_cuda(false_driver: Path) -> None:
    code = (
        "import sys, gpucomm.cuda, gpucomm._cuda; assert not gpucomm.cuda.why_not.cache_info().currsize;"
        "print('libcuda' in open('/proc/self/maps').read())"
    )
    assert ask(false_driver, code, FAKE_DRIVER="99000", FAKE_INIT="100") == "False"


@needs_extension
def test_it_is_of_this_version() -> None:
    from gpucomm import _cuda

    assert _cuda.version == gpucomm.__version__


def test_not_built_is_a_sentence_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not cuda.is_available()
    assert "has no CUDA extension" in cuda.why_not()
    with pytest.raises(UnavailableError, match=r"cuda:3 cannot be used: this build .* no CUDA extension"):
        cuda.device(3)
    (finding,) = (f for f in doctor.examine() if f.name == "CUDA extension")
    assert (finding.on, finding.why) == (False, cuda.why_not())


@pytest.mark.parametrize(
    ("version", "why", "sentence"),
    [("0.0.9", "", "gpucomm._cuda is of version 0.0.9, gpucomm._core of"), (None, "no driver", "no driver")],
)
def test_an_extension_that_does_not_do(
    monkeypatch: pytest.MonkeyPatch, version: str | None, why: str, sentence: str
) -> None:
    module = types.ModuleType("gpucomm._cuda")
    vars(module).update(version=version or gpucomm.__version__, unavailable=lambda: why)
    spec = importlib.machinery.ModuleSpec("gpucomm._cuda", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setitem(sys.modules, "gpucomm._cuda", module)
    monkeypatch.setattr(gpucomm, "_cuda", module, raising=False)
    assert cuda.why_not().startswith(sentence)
    assert not cuda.is_available()


def test_an_extension_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.machinery.ModuleSpec("gpucomm._cuda", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setitem(sys.modules, "gpucomm._cuda", None)
    monkeypatch.delattr(gpucomm, "_cuda", raising=False)
    assert cuda.why_not().startswith("gpucomm._cuda is there, but does not load: ")


def test_no_kernel_is_launched_before_it_is_loaded() -> None:
    """Loaded at its first launch it may end a capture, or wait for a kernel that waits for this rank."""
    texts = [path.read_text() for path in (ROOT / "src" / "cpp" / "cuda").iterdir()]
    assert any("<<<" in text for text in texts)
    for text in texts:
        for before in text.split("<<<")[:-1]:
            assert "resident_blocks(residency<" in before[-250:], before[-250:]
        assert "cudaLaunchKernel" not in text


@needs_extension
@pytest.mark.processes
@pytest.mark.skipif(not shutil.which("nm"), reason="there is no nm here")
def test_the_host_calls_nothing_that_only_devices_have() -> None:
    """From a template nvcc lets it, without a word, and has the call end the process by exit(1)."""
    extension = importlib.util.find_spec("gpucomm._cuda").origin
    symbols = subprocess.run(["nm", "-D", extension], capture_output=True, text=True, check=True).stdout
    assert "PyInit__cuda" in symbols
    assert not re.search(r" U exit\b", symbols)


def test_threads_that_open_one_gpu_at_once_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens it stays there for a while; a second one would join it."""
    together = threading.Barrier(2)

    def open_device(index: int) -> object:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.3)
        return object()

    module = types.ModuleType("gpucomm._cuda")
    vars(module).update(version=gpucomm.__version__, unavailable=lambda: "", open_device=open_device)
    monkeypatch.setattr(cuda, "why_not", functools.cache(lambda: ""))
    monkeypatch.setitem(sys.modules, "gpucomm._cuda", module)
    monkeypatch.setattr(gpucomm, "_cuda", module, raising=False)
    monkeypatch.setattr(_core, "add_gpu", lambda index, opened: opened)
    cuda._opened.cache_clear()
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(cuda.device, [7, 7])
    cuda._opened.cache_clear()
    assert first is second
