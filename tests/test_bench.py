"""`gpucomm bench`: what it computes, that it takes turns and sees wrong results, and a small real run."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

from gpucomm import Communicator, cli
from gpucomm.bench import coded, command, mpi_job, pattern, suite, table, worker
from gpucomm.bench import mpi as mpi_module
from gpucomm.bench.metrics import Result, busbw_factor, elements_of
from gpucomm.bench.mpi import Mpi, Outcome, Variant
from gpucomm.bench.ours import Gpucomm
from gpucomm.bench.peers import aligned_zeros, known_peers, peer, storage_of, ways
from gpucomm.bench.table import cells, header
from gpucomm.errors import CollectiveTimeoutError, InvalidArgumentError, RankFailedError, UnavailableError
from gpucomm.launch import local
from gpucomm.units import format_seconds, format_size, parse_seconds, parse_size, parse_sizes

KEYS = "collective library algorithm codec transport ranks bytes dtype time_us algbw_GBps busbw_GBps correct"


def test_sizes():
    assert parse_sizes("8, 1K,64k,1M,2G,1024") == [8, 1 << 10, 1 << 16, 1 << 20, 1 << 31]
    assert [format_size(n) for n in (8, 1 << 10, 1020, 3 << 20, 1 << 30)] == [
        "8 B",
        "1 KiB",
        "1020 B",
        "3 MiB",
        "1 GiB",
    ]
    assert parse_size("1048576G") == 1 << 50
    for text in ("0", "1X", "-1", "1.5M", "K", "1K2", "1048577G", "9" * 5000):
        with pytest.raises(InvalidArgumentError, match="must be a whole number above 0"):
            parse_size(text)
    with pytest.raises(InvalidArgumentError, match="at least one size"):
        parse_sizes(" , ")


def test_times():
    assert [parse_seconds(text) for text in ("2s", "5us", "1e3ns", "0")] == pytest.approx([2, 5e-6, 1e-6, 0])
    texts = [format_seconds(t) for t in (0.0, 8.714e-4, 0.99997e-3, 1.5, 3e-10)]
    assert texts == ["0 s", "871 µs", "1 ms", "1.5 s", "300 ps"]


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
    ],
)
def test_bus_bandwidth(collective, factor):
    assert busbw_factor(collective, 4) == factor
    result = Result(collective, "x", "y", "z", 4, 2000, "float32", (3e-6, 1e-6, 2e-6, 9e-6), True)
    row = result.row()
    assert list(row) == KEYS.split()
    assert (row["bytes"], row["codec"], row["correct"]) == (2000, "none", True)
    assert row["time_us"] == pytest.approx(2.5)
    assert row["algbw_GBps"] == pytest.approx(0.8)
    assert row["busbw_GBps"] == pytest.approx(0.8 * factor)


def test_buffers_are_whole_elements_and_equal_parts():
    assert elements_of("all_reduce", 1023, 4, 3) == 255
    assert elements_of("all_gather", 1024, 4, 3) == 255
    assert elements_of("reduce_scatter", 1, 8, 3) == 3
    assert elements_of("broadcast", 1, 8, 3) == 1
    for count in (1, 33):
        array = aligned_zeros(count, "float16")
        assert array.ctypes.data % 64 == 0 and array.size == count and not array.any()


class FakeWorld:
    """Answers as two ranks would; a call of contender 2 takes a tenth of a second, others a millisecond."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def run(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        self.asked.append((fn.__name__, *args))
        if fn is worker.begin:
            return [{"gpucomm": "shm", "gpucomm.empty": "shm", "gloo": "tcp"}] * 2
        if fn is worker.verify:
            return [True, args[1] != 1]
        if fn is worker.measure:
            index, calls = args
            slowest = calls * (0.1 if index == 2 else 0.001)
            return [slowest / 2, slowest]
        return [None, None]


def test_repetitions_take_turns_and_the_slowest_rank_counts(monkeypatch):
    world = FakeWorld()
    monkeypatch.setattr(suite, "local", lambda *_, **__: contextlib.nullcontext(world))
    plan = suite.Suite("all_gather", 2, (1001, 64), ("auto", "ring"), ("gloo",), "float32", 3, 0.010, 60.0)
    steps = list(plan.run())
    results = [step for step in steps if step is not None]
    assert len(steps) - len(results) == plan.steps
    assert [(r.nbytes, r.library, r.algorithm, r.transport, r.correct) for r in results] == [
        (nbytes, *who)
        for nbytes in (1000, 64)
        for who in (
            ("gpucomm", "auto", "shm", True),
            ("gpucomm", "ring", "shm", False),
            ("gloo", "default", "tcp", True),
        )
    ]
    assert [r.median_s for r in results[:3]] == pytest.approx([0.001, 0.001, 0.1])
    names = [asked[0] for asked in world.asked]
    second = names.index("prepare", names.index("prepare") + 1)
    turns = [asked[1:] for asked in world.asked[second - 9 : second]]
    assert turns == [(0, 10), (1, 10), (2, 1)] * 3  # 10 ms each, or one call
    assert (names[0], names[-1]) == ("begin", "end")


def test_the_table_names_ratios_and_wrong_results():
    ours = Result("all_reduce", "gpucomm", "ring", "shm", 2, 1024, "float32", (1e-6, 2e-6, 4e-6), False)
    gloo = Result("all_reduce", "gloo", "default", "tcp", 2, 1024, "float32", (7e-6,), True)
    names = header(["gloo"])
    line = dict(zip(names, cells(ours, [ours, gloo], ["gloo"]), strict=True))
    assert (line["size"], line["time us"], line["min"], line["max"]) == ("1 KiB", "2", "1", "4")
    assert (line["gloo/ours"], line["correct"]) == ("3.50x", "no")
    assert dict(zip(names, cells(gloo, [ours, gloo], ["gloo"]), strict=True))["gloo/ours"] == ""


@pytest.mark.parametrize("columns", [60, 200])
def test_a_terminal_that_is_too_narrow_gets_the_figures_whole(columns, monkeypatch, capsys):
    monkeypatch.setattr(table, "fancy", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    ours = Result("all_reduce", "gpucomm", "ring", "shm", 2, 1024, "float32", (1.234e-3, 2.345e-3), True)
    table.show("all_reduce", [ours], [])
    shown = capsys.readouterr().out
    assert "1234" in shown and "2345" in shown
    assert ("━" in shown) == (columns == 200)


class Broken:
    """A library that does nothing, or spoils one element."""

    transport = "none"

    def __init__(self, spoil: bool) -> None:
        self.spoil = spoil

    def bind(self, collective: str, algorithm: str, buffer: Any, part: Any) -> Callable[[], object]:
        def call() -> None:
            if self.spoil:
                buffer[buffer.size // 2] += 1

        return call


@pytest.mark.parametrize("collective", command.COLLECTIVES)
@pytest.mark.parametrize("spoil", [False, True])
def test_one_wrong_element_is_seen(alone, monkeypatch, collective, spoil):
    monkeypatch.setattr(worker, "_session", worker._Session({"broken": Broken(spoil)}))
    worker.prepare(alone, collective, [("broken", "default")], 1000, "float16")
    assert worker.verify(alone, collective, 0) is (not spoil)
    assert not worker._session.calls[0][1].any()  # ready to be timed


def test_the_numbers_tell_ranks_and_places_apart():
    whole = pattern.numbers(0, 4096, [0, 1, 2, 3])
    np.testing.assert_array_equal(pattern.numbers(1000, 96, [0, 1, 2, 3]), whole[1000:1096])
    assert len(np.unique(whole)) > 8
    rows = [pattern.numbers(64 * chunk, 64, [rank]).tobytes() for rank in range(4) for chunk in range(4)]
    assert len(set(rows)) == 16


def test_wrong_arguments_are_sentences(capsys, monkeypatch, tmp_path):
    def says(*arguments: str) -> str:
        assert cli.main(["bench", "all_reduce", *arguments]) == 2
        return capsys.readouterr().err

    assert "unknown peer 'nosuch' to measure against; known: gloo" in says("--against", "nosuch")
    assert "unknown algorithm 'nosuch'" in says("--algorithms", "auto,nosuch")
    assert "--ranks 0 must be at least 1" in says("--ranks", "0")
    assert "--links and --codec are ours alone: gloo knows" in says("--against", "gloo", "--codec", "int8")
    assert "coded_ring codes its messages, give --codec" in says("--algorithms", "coded_ring")
    assert "--codec identity is measured of float" in says("--codec", "identity", "--dtype", "int32")
    assert "--codec int8 does not take int32" in says("--codec", "int8", "--dtype", "int32")
    assert "--repeats 0 must be at least 1" in says("--repeats", "0")
    assert "--memory 'heap' must name one or more of private, huge_pages, shared" in says("--memory", "heap")
    assert "limit takes float32 only, got float64" in says("--against", "limit", "--dtype", "float64")
    assert "must be NAME=PATH, NAME one of --against" in says("--peer-python", "mpich=/bin/sh")
    refused = says("--against", "mpich", "--peer-python", "mpich=/nowhere/python")
    assert "'/nowhere/python' cannot be executed" in refused
    assert "cannot be written" in says("--json", str(tmp_path / "nowhere" / "x.json"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["bench", "all_reduce", "--against", "gloo"]) == 1
    assert "gloo needs torch, which is not installed: pip install 'gpucomm[torch]'" in capsys.readouterr().err


def test_peers_are_found_by_their_files():
    assert "gloo" in known_peers()
    for name in known_peers():
        assert callable(peer(name).check)
        assert callable(getattr(peer(name), "join", None)) != hasattr(peer(name), "VARIANTS")


@pytest.mark.parametrize(("collective", "variants"), [("all_reduce", 4), ("broadcast", 2)])
def test_variants_of_an_mpi_are_for_some_collectives(collective, variants):
    plan = suite.Suite(collective, 2, (8,), ("auto",), ("openmpi",), "float32", 1, 0.0, 60.0)
    assert plan.others[0] == ("openmpi", "default") and len(plan.others) == variants


@pytest.fixture
def fake_mpi(tmp_path) -> Callable[[str], Mpi]:
    """An interpreter with an mpiexec beside it that does what the text says."""

    def make(script: str) -> Mpi:
        (tmp_path / "python").symlink_to(sys.executable)
        (tmp_path / "mpiexec").write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{script}\n")
        (tmp_path / "mpiexec").chmod(0o755)
        variants = {"default": Variant(), "tuned": Variant(["--x"], {"Y": "1"}, ["all_reduce"])}
        return Mpi("openmpi", "Open MPI", variants, str(tmp_path / "python"), str(tmp_path))

    return make


ANSWER = "print(json.dumps({'time_s': 0.5, 'correct': False, 'ranks': 3, 'version': 'Open MPI v0'}))"


def test_a_small_job_of_an_mpi(fake_mpi):
    check = "a = sys.argv; assert a[1:3] == ['-n', '3'] and '--x' in a and os.environ['Y'] == '1'; "
    mpi = fake_mpi(
        f"{check}assert json.loads(a[-1]) == {{'count': 5}} and a[-2].endswith('mpi_job.py'); {ANSWER}"
    )
    assert mpi.run("tuned", 3, {"count": 5}, 60) == Outcome(0.5, False)


def test_a_job_of_another_mpi_or_world_is_refused(fake_mpi):
    mpi = fake_mpi(ANSWER.replace("Open MPI", "MPICH"))
    with pytest.raises(UnavailableError, match=r"is no openmpi of 3 ranks: it says 'MPICH v0' with 3"):
        mpi.run("default", 3, {}, 60)
    with pytest.raises(UnavailableError, match="is no openmpi of 2 ranks"):
        mpi.run("default", 2, {}, 60)


def test_a_job_that_fails_or_hangs_is_a_sentence(fake_mpi, monkeypatch):
    mpi = fake_mpi("time.sleep(60) if 'hang' in sys.argv[-1] else sys.exit('no such thing')")
    with pytest.raises(RankFailedError, match="openmpi's job ended with 1: no such thing"):
        mpi.run("default", 2, {}, 60)
    monkeypatch.setattr(mpi_module, "_START", 0.2)
    with pytest.raises(CollectiveTimeoutError, match=r"openmpi.s job did not end"):
        mpi.run("default", 2, {"hang": 1}, 0.1)


def test_an_mpi_without_its_mpiexec_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "python").symlink_to(sys.executable)
    with pytest.raises(
        UnavailableError, match=r"no mpiexec .*give --peer-python mpich=PATH, the python of an"
    ):
        Mpi("mpich", "MPICH", {}, str(tmp_path / "python"), str(tmp_path))


def test_a_job_checks_and_times(alone, monkeypatch, capsys):
    """The script of the MPI ranks, on an MPI of one rank that does nothing."""
    fake = SimpleNamespace(
        COMM_WORLD=SimpleNamespace(
            rank=0, size=1, Barrier=lambda: None, Allreduce=lambda *_: None, allreduce=lambda x, _: x
        ),
        IN_PLACE=None,
        MAX=None,
        MIN=None,
        Get_library_version=lambda: "Open MPI v0",
    )
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=fake))
    mpi_job.main({"collective": "all_reduce", "count": 100, "dtype": "float32", "least_s": 0.001})
    gc.enable()
    found = json.loads(capsys.readouterr().out)
    assert found["correct"] is True and found["time_s"] > 0 and found["ranks"] == 1
    fake.COMM_WORLD.Allreduce = lambda _, x: x.__setitem__(7, 9)
    mpi_job.main({"collective": "all_reduce", "count": 100, "dtype": "float32", "least_s": 0.001})
    gc.enable()
    assert json.loads(capsys.readouterr().out)["correct"] is False


def test_ratios_of_a_peer_with_variants():
    who = ("all_reduce", "mpich")
    theirs = [
        Result(*who, v, "mpi", 2, 64, "float32", (t,), True) for v, t in (("default", 3e-6), ("b", 2e-6))
    ]
    ours = Result("all_reduce", "gpucomm.empty", "auto", "shm", 2, 64, "float32", (1e-6,), True)
    line = dict(zip(header(["mpich"]), cells(ours, [ours, *theirs], ["mpich"]), strict=True))
    assert line["mpich/ours"] == "3.00x (2.00x)"


@pytest.mark.processes
def test_a_run_on_shared_arrays_beside_jobs_of_their_own(tmp_path, monkeypatch, fake_mpi):
    pytest.importorskip("cloudpickle")
    fake_mpi(ANSWER.replace("False", "True").replace("3", "2"))
    file = tmp_path / "rows.json"
    arguments = f"--sizes 1M --quick --repeats 2 --against openmpi --json {file}".split()
    arguments += ["--memory", "private,huge_pages,shared"]
    assert cli.main(["bench", "broadcast", *arguments, "--peer-python", f"openmpi={tmp_path}/python"]) == 0
    rows = [(row["library"], row["algorithm"], row["transport"]) for row in json.loads(file.read_text())]
    assert rows == [
        ("gpucomm", "auto", "shm"),
        ("gpucomm, huge pages", "auto", "shm"),
        ("gpucomm.empty", "auto", "shm"),
        ("openmpi", "default", "mpi"),
        ("openmpi", "huge_pages", "mpi"),
    ]


@pytest.mark.parametrize("spoil", [0.0, 0.5])
@pytest.mark.parametrize(("codec", "dtype"), [("int8", "float32"), ("fixed:0.01", "bfloat16")])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_of_coded_results_what_is_beyond_the_bound_is_wrong(collective, codec, dtype, spoil):
    def right(comm: Communicator) -> list[bool]:
        storage, size = storage_of(dtype), 3 * 1000
        buffer = np.zeros(size, storage)
        part = buffer[comm.rank * 1000 :][:1000] if collective != "all_reduce" else buffer
        found = []
        for algorithm in ("auto", "direct", "coded_ring", "two_shot"):
            pattern.fill(collective, buffer, part, comm.rank)
            Gpucomm(comm).bind(
                collective, algorithm, buffer, part, None, coded.codec_of(algorithm, codec), "mean"
            )()
            if dtype == "float32":
                part[7] += np.float32(spoil)
            elif spoil:
                part[7] ^= 1 << 6  # of the mantissa's seven bits
            most = coded.within(codec, collective, algorithm, 3, dtype)
            found.append(pattern.holds(collective, buffer, part, comm.rank, 3, most))
        return found

    for found in run_ranks(3, right):
        assert found == 4 * [not spoil]


@pytest.mark.processes
def test_a_run_with_a_codec_over_emulated_links(tmp_path, capsys):
    file = tmp_path / "rows.json"
    asked = f"--sizes 256K --quick --repeats 3 --links switch:20Mbit --codec int8 --json {file}"
    asked += " --algorithms auto,ring,coded_ring"
    assert cli.main(["bench", "all_gather", *asked.split()]) == 0
    auto, ring, ours = json.loads(file.read_text())
    assert [(row["algorithm"], row["codec"]) for row in (auto, ring, ours)] == [
        ("auto", "int8"),
        ("ring", "none"),
        ("coded_ring", "int8"),
    ]
    assert all(row["correct"] for row in (auto, ring, ours)) and "emulated" in auto["transport"]
    # The links take 52 ms for what is not coded and 39 less for what is: more than a busy machine adds.
    assert max(auto["time_us"], ours["time_us"]) < ring["time_us"]
    assert "all_gather, 2 ranks, float32, int8, switch:20Mbit, median of 3" in capsys.readouterr().out


@pytest.mark.processes
def test_a_real_run(tmp_path: Path, monkeypatch, capsys):
    pytest.importorskip("cloudpickle")
    theirs = [("limit", way, "shm") for way in ways("limit")]
    if importlib.util.find_spec("torch"):
        theirs.append(("gloo", "default", "tcp"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    file = tmp_path / "rows.json"
    arguments = f"--ranks 2 --sizes 1K --algorithms auto,ring --quick --repeats 2 --json {file}".split()
    peers = ",".join(dict.fromkeys(name for name, *_ in theirs))
    assert cli.main(["bench", "reduce_scatter", *arguments, "--against", peers]) == 0
    rows = json.loads(file.read_text())
    expected = [("gpucomm", "auto", "shm"), ("gpucomm", "ring", "shm"), *theirs]
    assert [(row["library"], row["algorithm"], row["transport"]) for row in rows] == expected
    for row in rows:
        assert list(row) == KEYS.split()
        about = (row["collective"], row["ranks"], row["bytes"], row["dtype"])
        assert about == ("reduce_scatter", 2, 1024, "float32")
        assert row["correct"] is True and row["time_us"] > 0
        assert row["algbw_GBps"] == pytest.approx(1024 / row["time_us"] / 1e3)
    assert capsys.readouterr().out.count(" yes\n") == len(rows)
    assert list((tmp_path / "temporary").iterdir()) == []


# Few bytes, one chunk, and more chunks of 256 KiB than the limit has slots for, the last one uneven.
SIZES = (8, 40 << 10, (3 << 20) + 4)


@pytest.mark.processes
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_limit_computes_what_libraries_do(tmp_path, ranks):
    pytest.importorskip("cloudpickle")
    contenders, wrong = [("limit", way) for way in ways("limit")], []
    with local(ranks, timeout=30) as world:
        world.run(worker.begin, [], ["limit"], str(tmp_path))
        for collective in command.COLLECTIVES:
            for nbytes in SIZES:
                count = elements_of(collective, nbytes, 4, ranks)
                world.run(worker.prepare, collective, contenders, count, "float32")
                for index, (_, way) in enumerate(contenders):
                    if not all(world.run(worker.verify, collective, index)):
                        wrong.append((collective, nbytes, way))
        world.run(worker.end)
    assert wrong == []
