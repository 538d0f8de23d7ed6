"""NCCL: how the library is found, and collectives over it; a library of the tests' own stands in for it."""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nccl_library
import numpy as np
import pytest
from conftest import ROOTED, pairs
from ranks import run_ranks
from reference import defined, fold, values
from test_coded import contribution

from gpucomm import _core, doctor, nccl
from gpucomm.errors import (
    ClosedError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    PeerLostError,
    UnavailableError,
    UnsupportedTypeError,
)

Build = Callable[..., Path]
TIMEOUT_S = 20.0


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
    """Compiles the library, with macros that make it another release."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_NCCL_FOLDER", str(tmp_path_factory.mktemp("worlds")))
        yield functools.partial(nccl_library.build, tmp_path_factory)


@pytest.fixture
def fake(build: Build) -> Iterator[ctypes.CDLL]:
    """Its controls; every test starts with ranks that work."""
    controls = nccl_library.controls(str(build()))
    controls.fake_reset()
    yield controls
    controls.fake_reset()


Body = Callable[[Any], Any]


def outcomes_of(fake: ctypes.CDLL, world: int, body: Body, timeout: float = TIMEOUT_S) -> list[Any]:
    """body(communicator) on every rank; an error is its rank's outcome. The ranks have a device each."""
    library = _core.NcclLibrary(fake._name)
    identity = library.unique_id()
    outcomes: list[Any] = [None] * world

    def run(rank: int) -> None:
        try:
            device = _core.HostDevice(deferred_us=20)
            comm = _core.NcclCommunicator(library, device, identity, rank, world, timeout=timeout)
            outcomes[rank] = body(comm)
            if not comm.closed:
                comm.close(timeout=timeout)
        except BaseException as error:  # pytest's too
            outcomes[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * timeout + 5)
        assert not thread.is_alive(), "a rank hangs beyond its deadline"
    return outcomes


def run(fake: ctypes.CDLL, world: int, body: Body, timeout: float = TIMEOUT_S) -> list[Any]:
    outcomes = outcomes_of(fake, world, body, timeout)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def native(comm: Any, collective: str, x: Any, out: Any, **how: Any) -> None:
    comm.native(collective, comm.device.array(x), comm.device.array(out), **how)


def by_plan(comm: Any, collective: str, algorithm: str, x: Any, out: Any, **how: Any) -> None:
    x, out = (None if a is None else comm.device.array(a) for a in (x, out))
    comm.run(collective, algorithm, x, out, **how)


# --- the library


def test_a_library_says_what_it_is(build: Build) -> None:
    library = _core.NcclLibrary(str(build()))
    assert (library.version, Path(library.file)) == ("2.27.3", build())
    assert library.has("ncclCommSplit") and not library.has("ncclCommShrink")
    assert len(library.unique_id()) == 128
    assert library.unique_id() != library.unique_id()


def test_too_old_a_release_is_refused_with_both_versions(build: Build) -> None:
    old = build("VERSION=21701")  # that comes before what is missing
    with pytest.raises(UnavailableError, match=r"is NCCL 2\.17\.1, gpucomm needs 2\.18\.0 or newer: older"):
        _core.NcclLibrary(str(old))
    with pytest.raises(UnavailableError, match=r"is NCCL 2\.8\.3, gpucomm needs 2\.18\.0"):
        _core.NcclLibrary(str(build("VERSION=2803")))


def test_a_missing_call_is_named(build: Build) -> None:
    with pytest.raises(UnavailableError, match=r"has no ncclSend, which every NCCL from 2\.18\.0 on"):
        _core.NcclLibrary(str(build("NO_SEND")))
    assert not _core.NcclLibrary(str(build("NO_SPLIT"))).has("ncclCommSplit")


def test_the_order_in_which_it_is_looked_for(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(nccl.VARIABLE, raising=False)
    monkeypatch.setattr(nccl, "_already_loaded", lambda: False)
    monkeypatch.setattr(nccl, "_spec", lambda: None)
    assert nccl.find() == nccl.Found("libnccl.so.2", "left to the dynamic linker")
    package = tmp_path / "nvidia" / "nccl"
    (package / "lib").mkdir(parents=True)
    spec = importlib_spec(package)
    monkeypatch.setattr(nccl, "_spec", lambda: spec)
    assert nccl.find().how == "left to the dynamic linker", "a package without the library"
    shutil.copy(build(), package / "lib" / "libnccl.so.2")
    assert nccl.find() == nccl.Found(str(package / "lib" / "libnccl.so.2"), "in the wheel nvidia-nccl")
    monkeypatch.setattr(nccl, "_already_loaded", lambda: True)
    assert nccl.find() == nccl.Found("libnccl.so.2", "already loaded in this process")
    monkeypatch.setenv(nccl.VARIABLE, "/nowhere/libnccl.so.2")
    assert nccl.find() == nccl.Found("/nowhere/libnccl.so.2", "named by GPUCOMM_NCCL_LIBRARY")


def importlib_spec(package: Path) -> Any:
    spec = importlib.machinery.ModuleSpec("nvidia.nccl", None, is_package=True)
    spec.submodule_search_locations = [str(package)]
    return spec


def test_what_was_not_found_is_a_sentence(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nccl.VARIABLE, "/nowhere/libnccl.so.2")
    assert nccl.why_not().startswith("NCCL cannot be loaded: /nowhere/libnccl.so.2: cannot open")
    assert nccl.why_not().endswith("(named by GPUCOMM_NCCL_LIBRARY)")
    monkeypatch.setenv(nccl.VARIABLE, str(build()))
    assert nccl.why_not() == ""


@pytest.mark.processes
def test_the_doctor_names_version_file_and_way(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nccl.VARIABLE, str(build()))
    (finding,) = doctor._LOOKS["NCCL"]("NCCL")
    assert finding.why.startswith(f"NCCL 2.27.3, {build()} (named by GPUCOMM_NCCL_LIBRARY)")


@pytest.mark.processes
def test_a_loaded_copy_is_taken_and_nothing_is_loaded_before(build: Build) -> None:
    """In a process of its own: this one may have torch's."""
    code = (
        "import ctypes, sys; from gpucomm import nccl\n"
        "nccl._spec = lambda: None\n"
        "mapped = lambda: 'libnccl' in open('/proc/self/maps').read()\n"
        "first = nccl.find().how; assert not mapped()\n"
        "why = nccl.why_not()\n"
        f"ctypes.CDLL({str(build())!r})\n"
        "print(first, '|', why, '|', nccl.find().how, '|', nccl.load().file)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != nccl.VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    first, why, then, file = done.stdout.strip().split(" | ")
    assert first == "left to the dynamic linker"
    assert "pip install nvidia-nccl-cu13, or name the file in GPUCOMM_NCCL_LIBRARY" in why or why == ""
    assert (then, file) == ("already loaded in this process", str(build()))


# --- its own collectives


def shapes(collective: str, rank: int, world: int, dtype: str, op: str) -> tuple[Any, Any]:
    """x of this rank, and an out to be filled."""
    count = 60
    x = values(dtype, count * world if collective == "reduce_scatter" else count, rank, op)
    out = np.zeros(count * world if collective == "all_gather" else count, dtype)
    return x, out


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"])
def test_native_collectives(fake: ctypes.CDLL, world: int, collective: str) -> None:
    root = world - 1

    def body(comm: Any) -> list[Any]:
        results = []
        for dtype in ("float32", "int32", "bool"):
            for op in ("sum", "min", "max", "prod", "mean"):
                if defined(op, dtype):
                    x, out = shapes(collective, comm.rank, world, dtype, op)
                    native(comm, collective, x, out, op=op, root=root)
                    results.append((dtype, op, out))
        return results

    for rank, results in enumerate(run(fake, world, body)):
        for dtype, op, out in results:
            xs = [shapes(collective, r, world, dtype, op)[0] for r in range(world)]
            if collective == "broadcast":
                want = xs[root]
            elif collective == "all_gather":
                want = np.concatenate(xs)
            else:
                want = fold(op, xs)
            if collective == "reduce_scatter":
                want = want[rank * 60 : rank * 60 + 60]
            if collective != "reduce" or rank == root:
                np.testing.assert_array_equal(out, want, err_msg=f"{dtype} {op}")


def test_what_nccl_does_not_offer_is_refused(fake: ctypes.CDLL) -> None:
    def body(comm: Any) -> None:
        whole, half = np.zeros(4, np.int16), np.zeros(4, np.float32)
        with pytest.raises(UnsupportedTypeError, match="NCCL has no sum of 16-bit integers"):
            native(comm, "all_reduce", whole, whole)
        with pytest.raises(UnsupportedTypeError, match="NCCL has no bor of int32 elements"):
            native(comm, "all_reduce", whole.astype(np.int32), whole.astype(np.int32), op="bor")
        with pytest.raises(UnavailableError, match="no all_to_all: any algorithm that offers it has"):
            native(comm, "all_to_all", half, half)
        with pytest.raises(InvalidArgumentError, match="x has 4 elements and out 3, which does not fit"):
            native(comm, "all_reduce", half, np.zeros(3, np.float32))
        assert not comm.closed

    run(fake, 1, body)


# --- plans, round by round


def arrays(collective: str, rank: int, world: int, count: int, root: int) -> tuple[Any, Any]:
    """x and out of a call; a rank that has none gets None."""
    many = count * world
    if collective in ("broadcast",):
        x = contribution(rank, count)
        return x, x
    if collective == "all_to_all":
        return contribution(rank, many), np.zeros(many, np.float32)
    if collective == "scatter":
        return (contribution(rank, many) if rank == root else None), np.zeros(count, np.float32)
    x = contribution(rank, many if collective == "reduce_scatter" else count)
    gets = rank == root or collective not in ROOTED
    out = np.zeros(many if "gather" in collective else count, np.float32)
    return x, out if gets else None


def on_host(comm: Any, collective: str, count: int, root: int, **how: Any) -> Any:
    x, out = arrays(collective, comm.rank, comm.world, count, root)
    if collective == "broadcast":
        comm.broadcast(x, root=root, **how)
        return x
    how |= {"root": root} if collective in ROOTED else {}
    getattr(comm, collective)(x, out=out, **how)
    return out


@pytest.mark.parametrize(("collective", "algorithm"), pairs())
@pytest.mark.parametrize("world", [2, 3, 4])
def test_plans_give_what_the_host_executor_gives(
    fake: ctypes.CDLL, collective: str, algorithm: str, world: int
) -> None:
    cases = [(count, segments) for count in (1, 1003) for segments in (1, 3)]
    root, ops = world - 1, {"op": "mean"} if "reduce" in collective else {}

    def over_nccl(comm: Any) -> list[Any]:
        results = []
        for count, segments in cases:
            x, out = arrays(collective, comm.rank, world, count, root)
            by_plan(comm, collective, algorithm, x, out, root=root, segments=segments, **ops)
            results.append(out)
        return results

    def over_threads(comm: Any) -> list[Any]:
        how = {"algorithm": algorithm, **ops}
        return [on_host(comm, collective, count, root, segments=s, **how) for count, s in cases]

    for got, want in zip(run(fake, world, over_nccl), run_ranks(world, over_threads), strict=True):
        for a, b in zip(got, want, strict=True):
            assert (a is None) == (b is None)
            assert a is None or a.tobytes() == b.tobytes()


@pytest.mark.parametrize(("collective", "algorithm"), pairs(coded=True))
@pytest.mark.parametrize("codec", ["zfp:8", "int8", "mpc", "fixed:0.001", "bf16"])
def test_coded_plans_too(fake: ctypes.CDLL, collective: str, algorithm: str, codec: str) -> None:
    """mpc's messages vary in length, fixed is additive, the others are neither."""
    for world in (2, 3):
        largest = max(float(np.abs(arrays(collective, r, world, 5000, 0)[0]).max()) for r in range(world))

        def over_nccl(comm: Any, world: int = world, largest: float = largest) -> Any:
            x, out = arrays(collective, comm.rank, world, 5000, 0)
            by_plan(comm, collective, algorithm, x, out, segments=2, codec=codec, max_abs=largest)
            return out

        def over_threads(comm: Any) -> Any:
            return on_host(comm, collective, 5000, 0, algorithm=algorithm, segments=2, codec=codec)

        for got, want in zip(run(fake, world, over_nccl), run_ranks(world, over_threads), strict=True):
            assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("nodes", [[0, 1, 1], [0, 0, 1, 2], [0, 1, 0, 1]])
def test_plans_across_nodes(fake: ctypes.CDLL, nodes: list[int]) -> None:
    """Here some rank folds from two others in one round."""
    algorithms = [a for c, a in pairs("all_reduce") if _core.algorithms()[a]["across_nodes"]]
    assert algorithms
    for algorithm in algorithms:

        def over_nccl(comm: Any, algorithm: str = algorithm) -> Any:
            x, out = arrays("all_reduce", comm.rank, comm.world, 1003, 0)
            by_plan(comm, "all_reduce", algorithm, x, out, segments=2, nodes=nodes)
            return out

        def over_threads(comm: Any, algorithm: str = algorithm) -> Any:
            return on_host(comm, "all_reduce", 1003, 0, algorithm=algorithm, segments=2)

        results = run(fake, len(nodes), over_nccl)
        for got, want in zip(results, run_ranks(len(nodes), over_threads, nodes=nodes), strict=True):
            assert got.tobytes() == want.tobytes()


def test_a_round_is_one_group(fake: ctypes.CDLL) -> None:
    """A ring of three has four rounds: as many groups, of a send and a receive of each rank."""

    def body(comm: Any) -> None:
        by_plan(comm, "all_reduce", "ring", np.ones(300, np.float32), np.zeros(300, np.float32))

    run(fake, 3, body)
    calls = fake.fake_calls().split()
    assert calls.count(b"ncclSend") == calls.count(b"ncclRecv") == 3 * 4
    assert calls.count(b"ncclGroupEnd") == 3 * 4
    assert b"ncclCommAbort" not in calls


@pytest.mark.parametrize(("collective", "algorithm"), pairs("all_reduce", "reduce", "reduce_scatter"))
def test_what_lands_at_once_is_bounded(collective: str, algorithm: str) -> None:
    """And all ranks cut the message alike."""
    world, count = 4, 64 << 20
    found = [_core.grouped(collective, algorithm, count, rank, world) for rank in range(world)]
    assert len({segments for segments, _, _ in found}) == 1
    assert max(scratch for _, _, scratch in found) <= 2 * (16 << 20) + 4096  # the plan's, and what lands
    small = [_core.grouped(collective, algorithm, 4096, rank, world) for rank in range(world)]
    assert {segments for segments, _, _ in small} == {1}


def test_more_sources_than_a_device_folds_are_refused() -> None:
    _core.grouped("all_reduce", "direct", 65 * 16, 0, 64)
    with pytest.raises(UnavailableError, match=r"algorithm direct folds 65 arrays at once, .* at most 64"):
        _core.grouped("all_reduce", "direct", 65 * 16, 0, 65)


@pytest.mark.parametrize("nodes", [list(range(72)), [rank // 2 for rank in range(72)], [0] * 72])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce", "reduce_scatter"])
def test_auto_takes_no_plan_that_a_device_does_not_fold(collective: str, nodes: list[int]) -> None:
    """Links as NCCL's between the nodes, on which `direct` is the cheapest of some."""
    links = _core.Links("nodes", 1e-5, 1.5e-5, 8e-11, 1e-12, nodes, 1e-5, 5e-6, 1e-11)
    for size in (256, 64 << 10, 1 << 20, 16 << 20):
        name, segments, _ = _core.choose(collective, size, 72, links, nodes=nodes, on_device=True)
        for rank in (0, 1, 71):
            plan = _core.build_plan(collective, name, 72, rank, 0, segments, True, nodes)
            assert max((len(step.peers) for step in plan.steps if step.kind == "recv_reduce"), default=0) < 64


def test_in_place_beside_not_in_place(fake: ctypes.CDLL) -> None:
    def body(comm: Any) -> Any:
        x = np.full(1000, comm.rank + 1, np.float32)
        out = x if comm.rank % 2 else np.zeros_like(x)
        by_plan(comm, "all_reduce", "one_shot", x, out)
        return out

    for out in run(fake, 4, body):
        np.testing.assert_array_equal(out, np.full(1000, 10, np.float32))


def test_split(fake: ctypes.CDLL, build: Build) -> None:
    def body(comm: Any) -> tuple[int, int] | None:
        part = comm.split(-1 if comm.rank == 3 else comm.rank % 2, key=-comm.rank)
        if part is None:
            return None
        out = np.zeros(1, np.int32)
        native(part, "all_reduce", np.array([comm.rank], np.int32), out)
        seat = (part.rank, part.world, int(out[0]))
        part.close()
        return seat

    assert run(fake, 4, body) == [(1, 2, 2), (0, 1, 1), (0, 2, 2), None]
    older = nccl_library.controls(str(build("NO_SPLIT")))

    def refused(comm: Any) -> None:
        with pytest.raises(UnavailableError, match=r"cannot split a communicator; 2\.18 and newer can"):
            comm.split(0)

    run(older, 2, refused)


# --- faults


def test_ranks_that_do_not_come(fake: ctypes.CDLL) -> None:
    fake.fake_hang(1)
    began = time.monotonic()
    outcomes = outcomes_of(fake, 2, lambda comm: None, timeout=0.3)
    assert time.monotonic() - began < 10
    for rank, outcome in enumerate(outcomes):
        assert isinstance(outcome, CollectiveTimeoutError)
        assert f"rank {rank} of 2 waited 0.3 s for the others in ncclCommInitRankConfig" in str(outcome)


def test_a_hanging_rank_ends_at_the_deadline(fake: ctypes.CDLL) -> None:
    all_there = threading.Barrier(2)

    def body(comm: Any) -> str:
        all_there.wait(TIMEOUT_S)
        fake.fake_hang(1)
        x = np.ones(8, np.float32)
        with pytest.raises(
            CollectiveTimeoutError, match=f"rank {comm.rank} of 2 waited 0.4 s for the others"
        ):
            by_plan(comm, "all_reduce", "direct", x, np.zeros_like(x), timeout=0.4)
        assert comm.closed
        with pytest.raises(ClosedError, match=f"of rank {comm.rank} of 2 is closed: .* waited 0.4 s"):
            native(comm, "all_reduce", x, np.zeros_like(x))
        return "ended"

    assert run(fake, 2, body) == ["ended", "ended"]
    assert fake.fake_calls().split().count(b"ncclCommAbort") == 2


def test_abort_ends_a_wait_of_another_thread(fake: ctypes.CDLL) -> None:
    def body(comm: Any) -> float:
        began = time.monotonic()
        if comm.rank == 1:
            comm.abort("the rank has gone home")
            return 0.0
        timer = threading.Timer(0.2, comm.abort, ["the watchdog had enough"])
        timer.start()
        x = np.ones(8, np.float32)
        with pytest.raises(ClosedError, match="is closed: the watchdog had enough"):
            native(comm, "all_reduce", x, np.zeros_like(x), timeout=TIMEOUT_S)
        timer.join()
        return time.monotonic() - began

    assert run(fake, 2, body)[0] < TIMEOUT_S / 2


@pytest.mark.parametrize(("code", "kind"), [(6, PeerLostError), (2, PeerLostError), (3, UnavailableError)])
def test_an_error_of_nccl_surfaces_with_its_words(fake: ctypes.CDLL, code: int, kind: type) -> None:
    all_there = threading.Barrier(2)

    def body(comm: Any) -> None:
        all_there.wait(TIMEOUT_S)
        comm.check()
        fake.fake_fail(comm.rank, code)
        words = "remote process exited" if code == 6 else "internal error"
        with pytest.raises(kind, match=rf"rank {comm.rank} of 2: .*{words}.*the last word.*NCCL 2\.27\.3"):
            comm.check()
        with pytest.raises(ClosedError, match=words):
            comm.check()

    run(fake, 2, body)


def test_success_is_not_reported_before_nccl_says_so(fake: ctypes.CDLL) -> None:
    """The result may be there, and wrong, when NCCL finds that a link has broken."""

    def body(comm: Any) -> None:
        fake.fake_fail_later(comm.rank, 6)
        x = np.ones(8, np.float32)
        with pytest.raises(
            PeerLostError, match=f"rank {comm.rank} of 1: what it had enqueued failed: remote"
        ):
            native(comm, "all_reduce", x, np.zeros_like(x))

    run(fake, 1, body)


def test_bad_arguments_are_sentences(fake: ctypes.CDLL) -> None:
    library, device = _core.NcclLibrary(fake._name), _core.HostDevice()
    with pytest.raises(InvalidArgumentError, match="a unique id has 128 bytes, got 3"):
        _core.NcclCommunicator(library, device, b"abc", 0, 1)
    with pytest.raises(InvalidArgumentError, match=r"rank must be in \[0, world\), got 2 of 2"):
        _core.NcclCommunicator(library, device, library.unique_id(), 2, 2)
