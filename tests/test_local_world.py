"""`gpucomm.local`: ranks as fresh interpreters or as threads, from a program or a notebook cell."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
import pytest

import gpucomm
from gpucomm import errors
from gpucomm.launch import member, process_world
from gpucomm.launch.cores import threads_per_rank
from gpucomm.launch.member import Member
from gpucomm.launch.worlds import World

pytest.importorskip("cloudpickle")
KINDS = [pytest.param(False, id="processes", marks=pytest.mark.processes), pytest.param(True, id="threads")]
QUICK = 10.0  # seconds; far below the worlds' timeout of 60


@pytest.fixture(scope="module", params=KINDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Three ranks that the tests which leave them whole share."""
    with gpucomm.local(3, threads=request.param) as world:
        yield world


def test_run_returns_results_of_closures_by_rank(world: World) -> None:
    offset = np.arange(3.0)

    def total(comm: gpucomm.Communicator, factor: float, *, plus: int) -> tuple[int, int, list[float]]:
        x = offset * factor + comm.rank
        comm.all_reduce(x)
        return comm.rank, comm.world, (x + plus).tolist()

    for factor in (1.0, 2.0):
        expected = (3 * offset * factor + 3 + 5).tolist()
        assert world.run(total, factor, plus=5) == [(rank, 3, expected) for rank in range(3)]
    assert world.ranks == 3


def test_init_inside_returns_the_ranks_communicator(world: World) -> None:
    assert world.run(lambda comm: gpucomm.init() is comm) == [True] * 3


def test_large_arguments_and_results(world: World) -> None:
    big = np.arange(1 << 20)  # 8 MiB, far beyond what a socket holds
    for rank, result in enumerate(world.run(lambda comm, x: x + comm.rank, big)):
        np.testing.assert_array_equal(result, big + rank)


def test_an_exception_names_its_rank_and_the_world_lives_on(world: World) -> None:
    def fail(comm: gpucomm.Communicator) -> None:
        if comm.rank == 1:
            raise KeyError("what went wrong")

    with pytest.raises(errors.RankFailedError, match="rank 1 raised KeyError: 'what went wrong'") as caught:
        world.run(fail)
    assert caught.value.rank == 1
    assert world.run(lambda comm: comm.rank) == [0, 1, 2]


@pytest.mark.parametrize("threads", KINDS)
def test_others_that_wait_for_a_failed_rank_do_not_hang(threads: bool) -> None:
    def fail(comm: gpucomm.Communicator) -> None:
        if comm.rank == 1:
            raise ValueError("root cause")
        comm.barrier()

    began = time.monotonic()
    with gpucomm.local(3, threads=threads) as world:
        with pytest.raises(errors.RankFailedError, match="rank 1 raised ValueError: root cause") as caught:
            world.run(fail)
        with pytest.raises(errors.ClosedError, match=r"rank 1 failed while .* busy; make a new one"):
            world.run(fail)
    assert caught.value.rank == 1
    assert time.monotonic() - began < QUICK


@pytest.mark.parametrize("threads", KINDS)
def test_a_timeout_may_be_longer_than_selectors_take(threads: bool) -> None:
    with gpucomm.local(1, threads=threads, timeout=1e9) as world:
        assert world.run(lambda comm: comm.rank) == [0]


@pytest.mark.parametrize("threads", KINDS)
def test_a_missing_call_ends_by_the_worlds_timeout(threads: bool) -> None:
    def forget(comm: gpucomm.Communicator) -> None:
        if comm.rank != 1:
            comm.barrier()

    with (
        gpucomm.local(2, threads=threads, timeout=1.5) as world,
        pytest.raises(errors.RankFailedError, match=r"rank 0 raised .*CollectiveTimeoutError") as caught,
    ):
        world.run(forget)
    assert caught.value.rank == 0


@pytest.mark.parametrize("threads", KINDS)
def test_one_rank(threads: bool) -> None:
    def mean(comm: gpucomm.Communicator) -> float:
        x = np.full(4, 3.0)
        comm.all_reduce(x, op="mean")
        return float(x[0])

    with gpucomm.local(1, threads=threads) as world:
        assert world.run(mean) == [3.0]


@pytest.mark.parametrize("threads", KINDS)
def test_close_can_be_repeated(threads: bool) -> None:
    world = gpucomm.local(2, threads=threads)
    world.close()
    world.close()
    with pytest.raises(errors.ClosedError, match="close"):
        world.run(lambda comm: None)


def test_a_run_within_a_run_is_refused() -> None:
    with gpucomm.local(1, threads=True) as world:

        def nested(comm: gpucomm.Communicator) -> list[int]:
            return world.run(lambda comm: comm.rank)

        with pytest.raises(errors.RankFailedError, match="another call of this world is running"):
            world.run(nested)


def test_who_computes_does_not_keep_the_error_of_another_thread() -> None:
    begin, go_on = time.monotonic(), threading.Event()

    def body(comm: gpucomm.Communicator) -> None:
        if comm.rank == 0:
            raise ValueError("broken")
        go_on.wait(60)

    with (
        gpucomm.local(2, threads=True) as ranks,
        pytest.raises(errors.RankFailedError, match=r"rank 0 .*broken"),
    ):
        try:
            ranks.run(body)
        finally:
            go_on.set()
    assert time.monotonic() - begin < 20


def test_a_thread_that_can_not_be_started_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the rank that was started is not left in its call."""
    start, ended = threading.Thread.start, threading.Event()

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "gpucomm-rank-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    def body(comm: gpucomm.Communicator) -> None:
        try:
            comm.barrier()
        finally:
            ended.set()

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with (
        gpucomm.local(2, threads=True) as ranks,
        pytest.raises(errors.UnavailableError, match="no thread to be rank 1: can't"),
    ):
        ranks.run(body)
    assert ended.wait(10)


def test_a_process_that_can_not_be_started_keeps_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[str], **options: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(member, "popen", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(errors.UnavailableError, match="rank 0 of 2 cannot be started: Too many"):
        gpucomm.local(2)
    assert os.listdir("/proc/self/fd") == before


def test_the_first_error_of_a_thread_is_the_cause() -> None:
    def fail(comm: gpucomm.Communicator) -> None:
        raise OverflowError(comm.rank)

    with gpucomm.local(2, threads=True) as world, pytest.raises(errors.RankFailedError) as caught:
        world.run(fail)
    assert isinstance(caught.value.__cause__, OverflowError)
    assert caught.value.__cause__.args == (caught.value.rank,)


def test_numpy_says_how_many_ranks_too() -> None:
    with gpucomm.local(np.int64(2), threads=True) as world:  # type: ignore[arg-type]
        assert world.run(lambda comm: comm.world) == [2, 2]


@pytest.mark.parametrize(
    ("ranks", "options", "words"),
    [
        (0, {}, "ranks=0"),
        (-1, {}, "ranks=-1"),
        (1.5, {}, "ranks=1.5"),
        (True, {}, "ranks=True"),
        (2, {"timeout": 0}, "of seconds, got 0"),
        (2, {"timeout": math.nan}, "of seconds, got nan"),
        (2, {"threads": True, "env": {"A": "1"}}, "env= needs processes"),
        (2, {"env": {"A": 5}}, "env must map names of variables, .* got 'A': 5"),
        (2, {"env": {"A=": "5"}}, "env must map names of variables, without =,"),
        (2, {"env": "A=5"}, "env must map names of variables to texts, got 'A=5'"),
    ],
)
def test_wrong_arguments(ranks: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=words):
        gpucomm.local(ranks, **options)


def test_missing_cloudpickle_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(errors.UnavailableError, match=r"pip install 'gpucomm\[local\]'"):
        gpucomm.local(2)


@pytest.mark.processes
def test_prints_appear_here_line_by_line_with_their_rank(capsys: pytest.CaptureFixture[str]) -> None:
    def talk(comm: gpucomm.Communicator) -> None:
        print("one\ntwo")
        print("trouble", file=sys.stderr)
        os.write(1, b"from C\n")
        print("unfinished", end="")

    with gpucomm.local(2) as world:
        world.run(talk)
        shown = capsys.readouterr()
    for rank in range(2):
        own = [line for line in shown.out.splitlines() if line.startswith(f"[{rank}] ")]
        assert own == [f"[{rank}] {text}" for text in ("one", "two", "from C", "unfinished")]
    assert sorted(shown.err.splitlines()) == ["[0] trouble", "[1] trouble"]


@pytest.mark.processes
def test_more_output_than_a_pipe_holds(capsys: pytest.CaptureFixture[str]) -> None:
    with gpucomm.local(1) as world:
        world.run(lambda comm: print("\n".join(["x" * 99] * 20_000)))
    assert capsys.readouterr().out == ("[0] " + "x" * 99 + "\n") * 20_000


@pytest.mark.processes
def test_the_traceback_of_the_rank_is_shown() -> None:
    def outer(comm: gpucomm.Communicator) -> None:
        def inner() -> float:
            return 1 / comm.rank

        inner()

    with gpucomm.local(1) as world, pytest.raises(errors.RankFailedError) as caught:
        world.run(outer)
    text = str(caught.value)
    assert "on rank 0:\nTraceback" in text and "in inner" in text and "ZeroDivisionError" in text
    assert "worker.py" not in text


@pytest.mark.processes
def test_what_cannot_be_sent_is_refused_with_the_world_left_whole() -> None:
    lock = threading.Lock()
    with gpucomm.local(1) as world:
        with pytest.raises(errors.InvalidArgumentError, match="cannot be sent to the ranks"):
            world.run(lambda comm: lock)
        with pytest.raises(errors.RankFailedError, match="the result, a generator, cannot be sent"):
            world.run(lambda comm: (x for x in ()))
        assert world.run(lambda comm: 1) == [1]


@pytest.mark.processes
def test_environment_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("PYTHONPATH", "/as/it/was")
    monkeypatch.setenv("GPUCOMM_RANK", "7")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    names = ("GPUCOMM_RANK", "GPUCOMM_WORLD", "OMP_NUM_THREADS", "PYTHONPATH", "EXTRA")
    with gpucomm.local(2, env={"EXTRA": "yes"}) as world:
        seen = world.run(lambda comm: [os.environ.get(name) for name in names])
        assert world.run(lambda comm: sys.path) == [sys.path] * 2
    threads = str(threads_per_rank(2))
    assert seen == [[str(rank), "2", threads, "/as/it/was", "yes"] for rank in range(2)]


@pytest.mark.processes
def test_workers_find_modules_where_this_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the current folder, nor in half a name; what is no text imports skip."""
    wanted = tmp_path / "half:other"
    for folder in (tmp_path / "here", tmp_path / "half", wanted):
        folder.mkdir()
        (folder / "pickle.py").write_text("raise SystemExit('planted')")
    (wanted / "pickle.py").rename(wanted / "found.py")
    (wanted / "found.py").write_text("")
    monkeypatch.chdir(tmp_path / "here")
    path = [str(wanted), *(entry for entry in sys.path if entry)]
    monkeypatch.setattr(sys, "path", [*path, None, tmp_path])

    def look(comm: gpucomm.Communicator) -> tuple[str, list[str]]:
        import found  # type: ignore[import-not-found]

        return found.__file__, sys.path

    with gpucomm.local(1) as world:
        assert world.run(look) == [(str(wanted / "found.py"), path)]


@pytest.mark.processes
@pytest.mark.parametrize("sink", [None, "closed", "ascii"])
def test_output_that_cannot_be_printed_ends_no_world(
    sink: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    stream = None if sink is None else io.TextIOWrapper(raw, encoding="ascii", line_buffering=True)
    if sink == "closed":
        assert stream is not None
        stream.close()
    with gpucomm.local(1) as world:
        monkeypatch.setattr(sys, "stdout", stream)
        assert world.run(lambda comm: os.write(1, "5 µs\n".encode())) == [6]
        monkeypatch.undo()
    if sink == "ascii":
        assert raw.getvalue() == b"[0] 5 \\xb5s\n"


@pytest.mark.processes
@pytest.mark.parametrize("during", ["a call", "no call"])
def test_a_killed_worker_is_named_at_once(during: str) -> None:
    def die(comm: gpucomm.Communicator) -> None:
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.barrier()

    world = gpucomm.local(3)
    pids = world.pids  # type: ignore[attr-defined]
    began = time.monotonic()
    if during == "no call":
        os.kill(pids[1], signal.SIGKILL)
        os.waitid(os.P_PID, pids[1], os.WEXITED | os.WNOWAIT)
    with pytest.raises(
        errors.RankFailedError, match=rf"rank 1 \(pid {pids[1]}\) was killed by SIGKILL"
    ) as caught:
        world.run(die)
    assert caught.value.rank == 1
    with pytest.raises(errors.ClosedError, match=r"rank 1 .* was killed by SIGKILL"):
        world.run(die)
    assert time.monotonic() - began < QUICK
    check_gone(pids)


@pytest.mark.processes
def test_a_worker_that_exits_is_named() -> None:
    with (
        gpucomm.local(2) as world,
        pytest.raises(errors.RankFailedError, match=r"rank 0 \(pid \d+\) ended with exit code 5"),
    ):
        world.run(lambda comm: os._exit(5) if comm.rank == 0 else None)


@pytest.mark.processes
def test_a_worker_that_cannot_start_is_named_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(errors.RankFailedError, match=r"rank \d \(pid \d+\) ended with exit code 1 while it"):
        gpucomm.local(2, env={"PYTHONHOME": "/nowhere"})
    assert time.monotonic() - began < QUICK


@pytest.mark.processes
def test_workers_that_are_not_ready_in_time_are_named_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Member] = []

    def member(*given: Any) -> Member:
        started.append(Member(*given))
        return started[-1]

    monkeypatch.setattr(process_world, "Member", member)
    said = r"^ranks \[0, 1\] of the 2 of a local world were not ready after 0\.001 s$"
    with pytest.raises(errors.CollectiveTimeoutError, match=said) as caught:
        gpucomm.local(2, timeout=0.001)
    check_gone([one.process.pid for one in started])
    del caught  # which has kept the world


@pytest.mark.processes
def test_what_a_rank_starts_inherits_nothing_of_the_world() -> None:
    """Not the world's socket, nor its memory, of which this process keeps nothing either."""

    def inherited(comm: gpucomm.Communicator) -> list[str]:
        found = []
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # that of the list itself
                if fd > 2 and os.get_inheritable(fd):
                    found.append(os.readlink(f"/proc/self/fd/{fd}"))
        return found

    def memories() -> int:
        files = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        return sum("memfd:gpucomm" in file for file in files)

    before = memories()
    with gpucomm.local(2) as world:
        assert world.run(inherited) == [[], []]
        assert memories() == before


@pytest.mark.processes
def test_a_rank_may_end_its_function_or_its_output_and_the_world_lives_on() -> None:
    with gpucomm.local(1) as world:
        with pytest.raises(errors.RankFailedError, match="rank 0 raised SystemExit: 5"):
            world.run(lambda comm: sys.exit(5))
        world.run(lambda comm: sys.stdout.close())
        assert world.run(lambda comm: comm.rank) == [0]


def test_a_communicator_that_does_not_close_well_leaves_no_other_open() -> None:
    def fail() -> None:
        raise errors.MismatchError("not alike")

    world = gpucomm.local(2, threads=True)
    first, second = world._comms  # type: ignore[attr-defined]
    world._comms[0] = SimpleNamespace(close=fail)  # type: ignore[attr-defined]
    world.close()
    assert second.closed
    first.close()


@pytest.mark.processes
def test_a_worker_is_seen_to_end_though_its_helper_lives_on(tmp_path: Path) -> None:
    """A forked helper, as a DataLoader has, holds the worker's socket open."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def fork_and_die(comm: gpucomm.Communicator) -> None:
        if not os.fork():
            Path(fifo).read_text()  # until the test opens and closes it
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        with gpucomm.local(1) as world, pytest.raises(errors.RankFailedError, match="killed by SIGKILL"):
            world.run(fork_and_die)
    finally:
        fifo.open("w").close()


@pytest.mark.processes
def test_what_a_busy_worker_has_started_ends_with_it(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def fail(comm: gpucomm.Communicator) -> None:
        if comm.rank == 0:
            held = os.open(fifo, os.O_WRONLY)
            helper = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 30"], stdout=held)
        comm.barrier()
        assert comm.rank == 0
        helper.wait()

    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with (
        gpucomm.local(2) as world,
        pytest.raises(errors.RankFailedError, match="rank 1 raised AssertionError"),
    ):
        world.run(fail)
    assert select.select([reader], [], [], 10)[0] and os.read(reader, 9) == b""


@pytest.mark.processes
def test_two_worlds_at_once() -> None:
    with gpucomm.local(2) as first, gpucomm.local(3) as second:
        for world in (first, second, first):
            ranks = world.run(lambda comm: (comm.barrier(), comm.world)[1])
            assert ranks == [world.ranks] * world.ranks
        pids = first.pids + second.pids  # type: ignore[attr-defined]
        assert len(set(pids)) == 5
    check_gone(pids)


@pytest.mark.processes
def test_after_torch_has_used_threads() -> None:
    """Where a forked child hangs in its first big operation."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.relu(torch.ones(1 << 20))
    torch.set_num_threads(threads)
    weight = torch.arange(3.0)

    def multiply(comm: gpucomm.Communicator) -> Any:
        import torch

        x = weight * (comm.rank + 1) + torch.relu(torch.ones(1 << 20)).mean()
        comm.all_reduce(x)
        return x

    with gpucomm.local(2) as world:
        for result in world.run(multiply):
            assert torch.equal(result, weight * 3 + 2)


@pytest.mark.processes
@pytest.mark.parametrize("code", ["signal.pause()", "sum(iter(int, 1))"])
@pytest.mark.parametrize("start", ["gpucomm.local(2)", "in_a_thread()"])
def test_workers_end_with_a_killed_parent(tmp_path: Path, start: str, code: str) -> None:
    """They hold a FIFO open; its end is theirs. The calls sleep or compute for ever.

    A world that another thread made must outlive that thread.
    """
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = f"""
        import os, signal, gpucomm
        from concurrent.futures import ThreadPoolExecutor as Pool

        def work(comm):
            global held
            held = open({str(fifo)!r}, "w")
            os.write(held.fileno(), b"%d\\n" % os.getpid())
            {code}

        def in_a_thread():
            with Pool(1) as pool:  # its thread ends with it
                return pool.submit(gpucomm.local, 2).result()

        world = {start}
        world.run(work)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    with fifo.open() as reader:
        pids = [int(reader.readline()) for _ in range(2)]
        parent.kill()
        parent.wait()
        check_ends(reader, pids)


@pytest.mark.processes
def test_workers_end_with_the_interpreter() -> None:
    """A world that nobody closed: its workers hold this process's output until they end."""
    script = "import gpucomm; world = gpucomm.local(2); print(*world.pids)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    check_gone([int(pid) for pid in done.stdout.split()])


@pytest.mark.processes
def test_an_interrupted_call_closes_the_world(tmp_path: Path) -> None:
    script = """
        import os, signal, gpucomm

        def work(comm):
            comm.barrier()
            if comm.rank == 0:
                os.kill(int(os.environ["PARENT"]), signal.SIGINT)
            signal.pause()

        world = gpucomm.local(2, env={"PARENT": str(os.getpid())})
        try:
            world.run(work)
        except KeyboardInterrupt:
            print("interrupted")
        try:
            world.run(work)
        except gpucomm.errors.ClosedError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    interrupted, closed = done.stdout.splitlines()
    assert interrupted == "interrupted"
    assert "interrupted by KeyboardInterrupt" in closed


def check_ends(reader: IO[str], pids: list[int]) -> None:
    """The pipe that these processes hold open comes to its end; where it does not they are killed."""
    ended = bool(select.select([reader], [], [], QUICK)[0])
    if not ended:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    assert reader.read() == ""
    assert ended, f"processes {pids} live on"


def check_gone(pids: list[int]) -> None:
    """None of them runs or is a zombie of this process."""
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
