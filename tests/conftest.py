"""Parameters that come from the registries: a new algorithm is tested by being registered."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rank_processes
from on_device import HostKit
from on_emulated import emulated_kit  # noqa: F401, a fixture
from on_gpu import CudaKit, missing

from gpucomm import Communicator, _core

ALGORITHMS = _core.algorithms()
ON_GPU = Path(__file__).parent / "gpu"
EMULATED = Path(__file__).parent / "emulated"  # of a run of their own: they load an emulated CUDA
ROOTED = ("reduce", "broadcast", "gather", "scatter")


def pairs(*collectives: str, coded: bool = False) -> list[tuple[str, str]]:
    """Every (collective, algorithm) that is on offer, without a codec or with one."""
    return [
        (c, name)
        for name, a in ALGORITHMS.items()
        for c in a["collectives"]
        if a["coded"] == coded and (not collectives or c in collectives)
    ]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is measured here is of a busy machine: nothing for the user's cache, nor is that read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUCOMM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def no_ddp_is_left() -> Iterator[None]:
    """DDP's forward puts back the DDP that was active before it: where ranks are threads, another rank's."""
    yield
    if torch_ddp := sys.modules.get("torch.nn.parallel.distributed"):
        torch_ddp.DistributedDataParallel._active_ddp_module = None  # dynamo asks it how to cut models


@pytest.fixture
def threadless(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads, by threading.get_ident(), that cannot start others; none at first."""
    start, idents = threading.Thread.start, set[int]()

    def start_or_refuse(thread: threading.Thread) -> None:
        if threading.get_ident() in idents:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    return idents


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests/gpu, with the reason, where there is no GPU; the first on an emulated one compiles it."""
    why = missing()
    # Workers of pytest steal from the end: what makes ranks of its own for all its tests shall do so once.
    items.sort(key=lambda item: item.path.name != "test_optim_fsdp.py")
    for item in items:
        if why and item.path.parent == ON_GPU:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {why}"))
        if item.path.parent == EMULATED:
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(params=_core.simd_levels())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each SIMD level of this processor, which the loops take while a test runs."""
    before = _core.simd_level()
    _core.set_simd_level(request.param)
    yield request.param
    _core.set_simd_level(before)


@pytest.fixture
def make_kit(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """The device that a test of devices runs on, by `deferred_us`."""
    if request.path.parent == EMULATED:
        return request.getfixturevalue("emulated_kit")
    return CudaKit if request.path.parent == ON_GPU else HostKit


@pytest.fixture
def alone() -> Iterator[Communicator]:
    """The communicator of a world of one."""
    with Communicator("local", 0, 1, region=_core.Region(1)) as comm:
        yield comm


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[str]]]:
    """For the processes that a test starts: they are ended with it."""
    started: list[subprocess.Popen[str]] = []
    yield started
    rank_processes.end(started)
