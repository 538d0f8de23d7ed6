"""Ranks from the environment, `gpucomm.init`, and `gpucomm run`."""

from __future__ import annotations

import math
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jobs
import pytest

import gpucomm
from gpucomm import _core, cli, errors
from gpucomm.launch import kept, lasting, rendezvous, wire
from gpucomm.launch.asked import parse_nodes
from gpucomm.launch.cores import cgroup_quota, threads_per_rank, usable_cores
from gpucomm.launch.environment import detect
from gpucomm.launch.lines import Lines
from gpucomm.launch.ranks import Ranks

PYTHON = sys.executable
RUN = [PYTHON, "-m", "gpucomm", "run"]
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "1"}
OPENMPI = {f"OMPI_COMM_WORLD_{name}": value for name, value in (("RANK", "1"), ("SIZE", "2"))}
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_JOB_ID": "77",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "1",
}


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without what a launcher set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(jobs.FOREIGN)}
    kept["GPUCOMM_CACHE"] = os.environ["GPUCOMM_CACHE"]
    return {k: v for k, v in kept.items() if k not in ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS")} | extra


def ancestor(variable: str) -> str:
    return f"ancestor-without-{variable}"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Ranks(0, 1, "alone", "alone")),
        (
            {"GPUCOMM_RANK": "2", "GPUCOMM_WORLD": "3", "GPUCOMM_JOB": "j", **TORCHRUN, **OPENMPI},
            Ranks(2, 3, "j", "gpucomm"),
        ),
        ({**TORCHRUN, **OPENMPI}, Ranks(1, 2, ":1::", "environment")),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, Ranks(1, 2, ":1::", "environment")),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Ranks(0, 1, ":::", "environment")),
        ({"RANK": "1", "WORLD_SIZE": "2", "PMIX_NAMESPACE": "n", **OPENMPI}, Ranks(1, 2, "n", "openmpi")),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1", "GPUCOMM_JOB": "j"},
            Ranks(1, 2, ":1::/j", "environment"),
        ),
        (
            {
                **TORCHRUN,
                "MASTER_ADDR": "host",
                "MASTER_PORT": "29500",
                "TORCHELASTIC_RUN_ID": "run",
                "TORCHELASTIC_RESTART_COUNT": "3",
            },
            Ranks(1, 2, "host:29500:run:3", "torchrun"),
        ),
        ({**OPENMPI, "PMIX_NAMESPACE": "ns@1"}, Ranks(1, 2, "ns@1", "openmpi")),
        (
            {
                **OPENMPI,
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "OMPI_MCA_ess_base_jobid": "9",
            },
            Ranks(1, 2, "9", "openmpi"),
        ),
        (OPENMPI, Ranks(1, 2, "ancestor-without-OMPI_COMM_WORLD_RANK", "openmpi")),
        (
            {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"},
            Ranks(3, 4, "ancestor-without-PMI_RANK", "mpich"),
        ),
        (SLURM, Ranks(1, 2, "77.0", "slurm")),
        ({k: v for k, v in SLURM.items() if k != "SLURM_STEP_NUM_TASKS"}, Ranks(1, 2, "77.0", "slurm")),
        # The shells of sbatch and salloc carry the job's task count, but are no task themselves.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, Ranks(0, 1, "alone", "alone")),
        ({**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, Ranks(0, 1, "alone", "alone")),
        ({**SLURM, **TORCHRUN}, Ranks(1, 2, ":1::", "environment")),
        ({"RANK": "", "WORLD_SIZE": ""}, Ranks(0, 1, "alone", "alone")),
    ],
)
def test_detect(environ: Mapping[str, str], expected: Ranks) -> None:
    assert detect(environ, ancestor) == expected


def test_a_task_of_slurm_that_speaks_pmi_is_one_of_slurm() -> None:
    """`srun --mpi=pmi2`: PMI's variables do not tell how many ranks are on this node."""
    ranks = detect({**SLURM, "SLURM_NNODES": "2", "PMI_RANK": "1", "PMI_SIZE": "2"}, ancestor)
    assert (ranks.source, ranks.transport) == ("slurm", "mpi")
    started = {**SLURM, "PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    assert detect(started, ancestor).source == "mpich"  # by mpiexec, inside a job of Slurm


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "1"}, ("WORLD_SIZE is not set", "RANK")),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ("not MASTER_PORT", "GPUCOMM_JOB")),
        ({**TORCHRUN, "WORLD_SIZE": "9" * 5000}, ("WORLD_SIZE='999", "from 0 to 2147483647")),
        ({"WORLD_SIZE": "2"}, ("RANK is not set", "WORLD_SIZE")),
        ({"RANK": "2", "WORLD_SIZE": "2"}, ("RANK=2", "below WORLD_SIZE=2")),
        ({"RANK": "0", "WORLD_SIZE": "0"}, ("below WORLD_SIZE=0",)),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, ("RANK='-1'", "whole number")),
        ({"RANK": "one", "WORLD_SIZE": "2"}, ("RANK='one'", "whole number")),
        ({"RANK": "1.0", "WORLD_SIZE": "2"}, ("RANK='1.0'",)),
        ({**TORCHRUN, "LOCAL_RANK": "x"}, ("LOCAL_RANK='x'",)),
        ({**TORCHRUN, "LOCAL_RANK": "2"}, ("local rank 2 of 2",)),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "3"}, ("local rank 1 of 3", "rank 1 of 2")),
        ({"GPUCOMM_RANK": "0", "GPUCOMM_WORLD": "1"}, ("GPUCOMM_JOB",)),
        ({"GPUCOMM_RANK": "0", "GPUCOMM_JOB": "j"}, ("GPUCOMM_WORLD is not set",)),
        ({"OMPI_COMM_WORLD_RANK": "0"}, ("OMPI_COMM_WORLD_SIZE is not set",)),
        ({"PMI_SIZE": "2"}, ("PMI_RANK is not set",)),
        ({**SLURM, "SLURM_PROCID": "2"}, ("SLURM_PROCID=2", "below")),
    ],
)
def test_detect_refuses_broken_variables(environ: Mapping[str, str], words: tuple[str, ...]) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        detect(environ, ancestor)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("environ", "transport"),
    [
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "c10d"),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "mpi"),
        ({"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}, "mpi"),
        ({**SLURM, "SLURM_STEP_NUM_NODES": "2"}, "mpi"),
        ({**SLURM, "SLURM_NNODES": "2"}, "mpi"),
        ({**TORCHRUN, "GPUCOMM_TRANSPORT": "mpi"}, "mpi"),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "GPUCOMM_TRANSPORT": "shm"}, "shm"),
    ],
)
def test_detect_tells_what_connects_several_nodes(environ: Mapping[str, str], transport: str) -> None:
    environ = {"OMPI_COMM_WORLD_LOCAL_RANK": "0", **environ}
    ranks = detect(environ, ancestor)
    assert (ranks.transport, ranks.nodes) == (transport, ())


@pytest.mark.parametrize(
    ("text", "world", "nodes"),
    [
        ("", 3, ()),
        ("2x2", 4, (0, 0, 1, 1)),
        ("3x1", 3, (0, 1, 2)),
        (" 1x2 ", 2, (0, 0)),
        ("0,0,0,1", 4, (0, 0, 0, 1)),
        ("7,5,7", 3, (0, 1, 0)),
    ],
)
def test_nodes(text: str, world: int, nodes: tuple[int, ...]) -> None:
    assert parse_nodes(text, world) == nodes
    environ = {"RANK": "0", "WORLD_SIZE": str(world), "MASTER_PORT": "1", "GPUCOMM_NODES": text}
    assert detect(environ, ancestor).nodes == nodes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *(
            (text, "must be NODESxRANKS, as in 2x4, or the node of each rank")
            for text in ("x", "2x", "-2x-2")
        ),
        *((text, "must be NODESxRANKS") for text in ("4x0", "0,-1,0,0", "0,0,a,1", "1e9x1e9")),
        *((f"{count}x1", f"are of {count} ranks together, but there are 4") for count in (3, 99999999999)),
        ("0,1", "are of 2 ranks together, but there are 4"),
    ],
)
def test_nodes_that_mean_nothing(text: str, said: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=said) as caught:
        detect({"RANK": "0", "WORLD_SIZE": "4", "MASTER_PORT": "1", "GPUCOMM_NODES": text}, ancestor)
    assert repr(text) in str(caught.value)


def test_an_unknown_transport() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="GPUCOMM_TRANSPORT='tcp' must be shm, mpi or c10d"):
        detect({"RANK": "0", "WORLD_SIZE": "4", "GPUCOMM_TRANSPORT": "tcp"}, ancestor)


@pytest.mark.processes
def test_job_key_is_that_of_the_launcher_also_through_a_wrapper(tmp_path: Path) -> None:
    """Two ranks as mpiexec starts them, one of them through a shell script that stays its parent."""
    show = tmp_path / "show.py"
    show.write_text(
        "import os\nfrom gpucomm.launch.environment import detect\nprint(detect(os.environ).job)\n"
    )
    wrapper = tmp_path / "wrapper.sh"
    wrapper.write_text(f"{sys.executable} {show}\ntrue\n")
    jobs = []
    for rank, command in enumerate(([sys.executable, str(show)], ["sh", str(wrapper)])):
        env = environment(PMI_RANK=str(rank), PMI_SIZE="2")
        jobs.append(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)
    assert jobs[0] == jobs[1]
    assert jobs[0].startswith(f"{os.getpid()}:")


def test_cgroup_quota(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("150000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cgroup_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cgroup_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert cgroup_quota(tmp_path) == 0.5


def test_threads_per_rank() -> None:
    cores = usable_cores()
    assert 1 <= cores <= len(os.sched_getaffinity(0))
    assert [threads_per_rank(1), threads_per_rank(10 * cores)] == [cores, 1]


def test_lines_are_cut_and_tagged() -> None:
    lines = Lines(3)
    assert lines.feed(b"one\ntw") == "[3] one\n"
    assert lines.feed(b"o\n\nthree \xff") == "[3] two\n[3] \n"
    assert lines.end() == "[3] three \ufffd\n"
    assert lines.end() == ""
    assert lines.feed(b"x" * 100_000).startswith("[3] xxx"), "a line without an end is not kept for ever"


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)


def test_init_alone(no_launcher: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gpucomm")
    with gpucomm.init(timeout=5) as comm:
        assert caplog.messages == ["rank 0 of 1: started by alone, transport local, nodes [0]"]
        assert (comm.rank, comm.world, comm.timeout) == (0, 1, 5)
        assert gpucomm.init() is comm
    assert comm.closed
    again = gpucomm.init()
    assert again is not comm and not again.closed
    again.close()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"timeout": 9}, r"timeout=9, but the communicator that is open has 5 s: .* \(rank 0 of 1\)"),
        ({"deterministic": False}, "deterministic=False, but the communicator that is open is frozen"),
        ({"deterministic": "a"}, "deterministic must be True, False or None, got 'a'"),
    ],
)
def test_an_init_that_asks_for_another_communicator_than_the_open_one(
    asked: dict[str, Any], said: str, no_launcher: None
) -> None:
    with gpucomm.init(timeout=5, deterministic=True) as comm:
        for same in ({}, {"timeout": 5.0}, {"deterministic": True}):
            assert gpucomm.init(**same) is comm
        with pytest.raises(errors.InvalidArgumentError, match=said):
            gpucomm.init(**asked)
        with kept.bound(comm), pytest.raises(errors.InvalidArgumentError, match=said):
            gpucomm.init(**asked)


@pytest.mark.parametrize("rank", [0, 3])
def test_more_ranks_than_share_memory_are_refused_at_once(
    rank: int, no_launcher: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", str(rank)), ("WORLD", "65"), ("JOB", "too many")):
        monkeypatch.setenv(f"GPUCOMM_{name}", value)
    begin = time.monotonic()
    with pytest.raises(errors.InvalidArgumentError, match=r"world must be in \[1, 64\] .*, got 65"):
        gpucomm.init(timeout=20)
    assert time.monotonic() - begin < 10


def test_every_init_of_a_job_meets_at_an_address_of_its_own(
    no_launcher: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that is quick with its second init must not meet another's first."""
    counts: list[int] = []

    def meet(ranks: Ranks, count: int, *_: Any) -> gpucomm.Communicator:
        counts.append(count)
        return gpucomm.Communicator("local", 0, 1, region=_core.Region(1))

    monkeypatch.setattr(rendezvous, "meet", meet)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", "1")
    for _ in range(2):
        gpucomm.init().close()
    assert counts[1] == counts[0] + 1
    assert wire.address("job", 0) != wire.address("job", 1)


@pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan, "1", True])
def test_init_refuses_timeout(timeout: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="positive, finite"):
        gpucomm.init(timeout=timeout)


def script(folder: Path, code: str) -> str:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(code))
    return str(path)


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a script's text under `gpucomm run` and return what it printed."""

    def start(ranks: int, code: str, *args: str, options: tuple[str, ...] = (), **extra: str) -> Any:
        command = [*RUN, "-n", str(ranks), *options, script(tmp_path, code), *args]
        return subprocess.run(command, env=environment(**extra), capture_output=True, text=True, timeout=60)

    return start


@pytest.mark.processes
def test_run_connects_ranks_with_init(run: Run) -> None:
    """Twice in one process: the second init must meet the second of the other rank."""
    done = run(
        3,
        """
        import os, sys, numpy, gpucomm
        for repeat in range(2):
            with gpucomm.init(timeout=20) as comm:
                x = numpy.full(3, comm.rank + 1.0)
                comm.all_reduce(x)
                names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
                told = [os.environ[name] for name in names]
                print(comm.rank, comm.world, comm.transport, x[0], told, sys.argv[1:], flush=True)
        """,
        "a",
        "--tag-output",
        options=("--tag-output",),
    )
    lines = [
        f"[{rank}] {rank} 3 shm 6.0 ['{rank}', '3', '{rank}', '3'] ['a', '--tag-output']"
        for rank in range(3)
        for _ in "12"
    ]
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, lines), done.stderr


@pytest.mark.processes
def test_run_takes_ranks_for_several_nodes(run: Run) -> None:
    code = """
        import logging, gpucomm
        logging.basicConfig(level="INFO")
        comm = gpucomm.init(timeout=20)
        comm.barrier()
        print(f"{comm.nodes} {comm}", flush=True)
    """
    done = run(3, code, options=("--tag-output", "--nodes", "0,0,1"))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] (0, 0, 1) <gpucomm.Communicator rank {rank} of 3, transport shm, 2 nodes>"
        for rank in range(3)
    ]
    for rank in range(3):
        assert f"rank {rank} of 3: started by gpucomm, transport shm, nodes [0, 0, 1]" in done.stderr
    refused = run(3, code, options=("--nodes", "2x2"))
    assert refused.returncode == 2 and "are of 4 ranks together, but there are 3" in refused.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    "variables", [("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")]
)
def test_init_with_another_launchers_variables(tmp_path: Path, variables: tuple[str, str]) -> None:
    code = "import gpucomm; comm = gpucomm.init(20); comm.barrier(); print(comm.rank, comm.world)"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment(**{variables[0]: str(rank), variables[1]: "2", "MASTER_PORT": tmp_path.name}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["0 2\n", "1 2\n"]


@pytest.mark.processes
def test_init_in_a_forked_child_is_refused(tmp_path: Path) -> None:
    code = """
        import os, gpucomm
        from gpucomm import errors
        comm = gpucomm.init()
        child = os.fork()
        if not child:
            try:
                gpucomm.init()
            except errors.UnavailableError as error:
                os._exit(7 if "was forked from rank 0" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert not comm.closed
    """
    subprocess.run([sys.executable, script(tmp_path, code)], env=environment(), check=True, timeout=60)


@pytest.mark.processes
def test_run_tags_output(run: Run) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.stdout.write('no newline')"
    done = run(2, code, options=("--tag-output",))
    assert sorted(done.stdout.splitlines()) == ["[0] no newline", "[0] out", "[1] no newline", "[1] out"]
    assert sorted(done.stderr.splitlines()) == ["[0] err", "[1] err"]


@pytest.mark.processes
@pytest.mark.parametrize(("given", "seen"), [({}, str(threads_per_rank(2))), ({"OMP_NUM_THREADS": "7"}, "7")])
def test_run_sets_threads(run: Run, given: dict[str, str], seen: str) -> None:
    assert run(2, "import os; os.write(1, os.environb[b'OMP_NUM_THREADS'])", **given).stdout == 2 * seen


@pytest.mark.processes
def test_run_module_and_executable(tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text("import sys; sys.stdout.write(f'{__name__} {sys.argv[1:]}\\n')")
    for options, expected in (
        (["-m", "mod", "-x"], "__main__ ['-x']\n"),
        (["--no-python", "sh", "-c", "echo $GPUCOMM_WORLD"], "2\n"),
    ):
        command = [*RUN, "-n", "2", *options]
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, 2 * expected), done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("args", [["--", "y"], ["x", "--", "-n", "3"], ["--", "--"], ["--tag-output", "-m"]])
@pytest.mark.parametrize(
    "before", [["mod.py"], ["--", "mod.py"], ["-m", "mod"], ["--no-python", PYTHON, "mod.py"]]
)
def test_run_passes_arguments_on_as_they_are(before: list[str], args: list[str], tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text("import sys; print(sys.argv[1:])")
    command = [*RUN, "-n", "1", *before, *args]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{args}\n"), done.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    ("failure", "code", "words"),
    [
        ("sys.exit(3)", 3, "ended with exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
        ("1 / 0", 1, "ended with exit code 1"),
    ],
)
def test_run_ends_the_others_when_a_rank_fails(run: Run, failure: str, code: int, words: str) -> None:
    done = run(
        3,
        f"""
        import os, signal, sys
        if os.environ["GPUCOMM_RANK"] == "2":
            {failure}
        signal.pause()
        """,
    )
    (report,) = [line for line in done.stderr.splitlines() if line.startswith("gpucomm run:")]
    assert done.returncode == code
    assert report.startswith("gpucomm run: rank 2 (pid ") and report.endswith(words)


@pytest.mark.processes
def test_run_terminates_first_and_kills_later(tmp_path: Path) -> None:
    code = """
        import os, signal
        rank = os.environ["GPUCOMM_RANK"]
        signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"told\\n"))  # and live on
        fifo = os.environ["FIFO"]
        if rank == "1":
            open(fifo).read()  # until rank 0 is prepared
            os._exit(4)
        open(fifo, "w").close()
        while True:
            signal.pause()
    """
    done = run_impatiently(tmp_path, code)
    assert (done.returncode, done.stdout) == (4, "told\n"), done.stderr


def run_impatiently(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Two ranks that share a FIFO, killed soon after they are told to end."""
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    short = (
        "import sys; from gpucomm import cli; from gpucomm.launch import job; job.GRACE = 0.3;"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", short, "run", "-n", "2", script(folder, code)]
    env = environment(FIFO=str(fifo))
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.processes
def test_run_blames_the_killed_rank_when_another_fails_at_the_same_time(tmp_path: Path) -> None:
    """The launcher is stopped until both have ended: rank 0 in consequence of rank 1's kill, say."""
    code = """
        import os, signal
        signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
        os.write(1, f"{os.environ['GPUCOMM_RANK']} {os.getpid()}\\n".encode())
        while True:
            signal.pause()
    """
    with launcher(2, script(tmp_path, code), stderr=subprocess.PIPE) as job:
        pids = dict(job.stdout.readline().split() for _ in range(2))
        job.send_signal(signal.SIGSTOP)
        for rank, signum in (("1", signal.SIGKILL), ("0", signal.SIGTERM)):
            ended = os.pidfd_open(int(pids[rank]))
            os.kill(int(pids[rank]), signum)
            assert select.select([ended], [], [], 10)[0]
            os.close(ended)
        job.send_signal(signal.SIGCONT)
        assert f"rank 1 (pid {pids['1']}) was killed by SIGKILL" in job.stderr.read()
        assert job.wait(60) == 137


@pytest.mark.processes
def test_run_lets_the_others_finish_when_a_rank_ends_well(run: Run, tmp_path: Path) -> None:
    """Rank 1 works on only after rank 0 has ended, which it sees at the end of the FIFO."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = f"""
        import os
        if os.environ["GPUCOMM_RANK"] == "0":
            open({str(fifo)!r}, "w")
        else:
            assert open({str(fifo)!r}).read() == ""
            print("finished")
    """
    done = run(2, code)
    assert (done.returncode, done.stdout) == (0, "finished\n"), done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_run_passes_signals_on(tmp_path: Path, signum: signal.Signals) -> None:
    code = f"""
        import os, signal
        signal.signal({int(signum)}, lambda *_: (os.write(1, b"told\\n"), os._exit(0)))
        os.write(1, b"ready\\n")
        while True:
            signal.pause()
    """
    unignored = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)}  # as under nohup
    with launcher(2, script(tmp_path, code), **unignored) as job:
        assert [job.stdout.readline() for _ in range(2)] == ["ready\n", "ready\n"]
        job.send_signal(signum)
        assert job.stdout.read() == "told\ntold\n"
        assert job.wait(60) == 128 + signum


@pytest.mark.processes
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_run_passes_signals_on_to_what_ranks_have_started(tmp_path: Path, signum: signal.Signals) -> None:
    """And waits for it where the rank ends at once, as a shell does."""
    code = f"""
        import os, signal, time
        signal.signal({int(signum)}, signal.SIG_DFL)
        if os.fork():
            signal.pause()
        signal.signal({int(signum)}, lambda *_: (time.sleep(0.3), os.write(1, b"told\\n"), os._exit(0)))
        signal.alarm(20)
        os.write(1, b"ready\\n")
        while True:
            signal.pause()
    """
    with launcher(2, script(tmp_path, code)) as job:
        assert [job.stdout.readline() for _ in range(2)] == ["ready\n", "ready\n"]
        job.send_signal(signum)
        assert job.wait(60) == 128 + signum
        assert job.stdout.read() == "told\ntold\n"


@pytest.mark.processes
def test_run_kills_what_ranks_have_started(tmp_path: Path) -> None:
    """Of a rank that fails and of one that is terminated; neither heeds that."""
    code = """
        import os, signal
        fifo = os.open(os.environ["FIFO"], os.O_RDWR)
        if not os.fork():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGALRM, lambda *_: os.write(1, b"left\\n"))
            signal.alarm(20)
            os.write(fifo, b"x")
            signal.pause()
        elif os.environ["GPUCOMM_RANK"] == "0":
            signal.pause()
        else:
            os.read(fifo, 1), os.read(fifo, 1)
            os._exit(4)
    """
    done = run_impatiently(tmp_path, code)
    assert (done.returncode, done.stdout) == (4, ""), done.stderr


@pytest.mark.processes
def test_a_helper_that_imports_the_program_again_is_told_what_it_lacks(run: Run) -> None:
    code = """
        import multiprocessing
        import gpucomm

        comm = gpucomm.init()
        if __name__ == "__main__":
            helper = multiprocessing.get_context("spawn").Process(target=print)
            helper.start()
            helper.join()
            print(helper.exitcode)
            comm.barrier()
    """
    done = run(2, code)
    assert (done.returncode, done.stdout) == (0, "1\n1\n"), done.stderr
    assert "started by multiprocessing, as it imports the program again" in done.stderr


@pytest.mark.processes
def test_run_leaves_no_orphan_after_a_kill_of_the_launcher(tmp_path: Path) -> None:
    """The ranks hold the launcher's output, so its end is theirs."""
    code = "import os, signal; os.write(1, b'%d\\n' % os.getpid()); signal.pause()"
    with launcher(3, script(tmp_path, code)) as job:
        pids = [int(job.stdout.readline()) for _ in range(3)]
        job.kill()
        ended = bool(select.select([job.stdout], [], [], 10)[0])
        if not ended:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        assert ended and job.stdout.read() == "", f"ranks {pids} live on"


def launcher(ranks: int, target: str, **options: Any) -> Any:
    command = [*RUN, "-n", str(ranks), target]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "-n", "0", "x.py"], "at least one rank"),
        (["run", "-n", "2", "no-such.py"], "there is no script 'no-such.py'"),
    ],
)
def test_cli_explains_wrong_arguments(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [[], ["no-such-command"], ["run", "x.py"], ["run", "-n", "2", "--tag", "x.py"], ["run", "-n", "2"]],
)
def test_cli_refuses(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2
    assert "usage: gpucomm" in capsys.readouterr().err


def test_cli_help_lists_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    assert all(name in shown and summary in shown for name, (_, summary) in cli.COMMANDS.items())
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("gpucomm ")


def test_a_launcher_that_is_hidden_is_known_by_its_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with hidepid, where the launcher is another user's."""

    def hidden(pid: int) -> list[str]:
        raise FileNotFoundError(f"/proc/{pid}/stat")

    monkeypatch.setattr("gpucomm.launch.environment._stat", hidden)
    assert detect({"PMI_RANK": "1", "PMI_SIZE": "2"}).job == str(os.getppid())


def test_processes_can_be_started_once_there_are_threads_again(
    monkeypatch: pytest.MonkeyPatch, threadless: set[int]
) -> None:
    monkeypatch.setattr(lasting._Starter, "pid", 0)
    threadless.add(threading.get_ident())
    with pytest.raises(errors.UnavailableError, match=r"can't start new thread \(ulimit -u\)"):
        lasting.popen(["true"])
    threadless.clear()
    assert lasting.popen(["true"]).wait(timeout=10) == 0


@pytest.mark.processes
@pytest.mark.parametrize(
    "started",
    [
        "from gpucomm.cli import main; main(['run', '-n', '3', '--no-python', 'true'])",
        "import gpucomm; gpucomm.local(3)",
    ],
)
def test_ranks_for_which_descriptors_are_missing_are_a_sentence(started):
    limits = "import os, resource; have = max(map(int, os.listdir('/proc/self/fd'))) + 1"
    lowered = "resource.setrlimit(resource.RLIMIT_NOFILE, (have + 3, have + 3))"
    code = f"import gpucomm.launch.job, gpucomm.launch.process_world; {limits}; {lowered}; {started}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert re.search(r"rank \d of 3 cannot be started: Too many open files \(ulimit -n", done.stderr), (
        done.stderr
    )
