"""Ranks on several nodes, as far as one machine can show: real launchers, nodes by GPUCOMM_NODES."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import jobs
import pytest
from once import once
from ranks import PROMPT_S

import gpucomm
from gpucomm import cli, errors

pytestmark = pytest.mark.processes

# Each layout of nodes under some MPI, and each MPI in some layouts: a job takes ten seconds of a processor.
JOBS = [
    ("mpich", "2x2", 4),
    ("mpich", "0,0,0,1", 4),
    ("openmpi", "4x1", 4),
    ("openmpi", "2x2", 4),
    ("debian", "4x1", 4),
    ("forks", "2x2", 4),
]
CHECKS = [
    "shows_itself",
    "contract",
    "chunk_borders",
    "same_bits",
    "point_to_point",
    "groups",
    "groups_at_once",
    "lists_and_objects",
    "asynchronous",
    "by_itself",
    "shared_arrays",
    "quiet",
    "aborts",
    "small_groups",
    "senders_end",
    "many_refused",
    "refused_and_made",
    "second_init",
]


def of(job):
    return f"{job[0]}-{job[1]}"


@pytest.fixture(scope="module", params=JOBS, ids=of)
def job(request, tmp_path_factory):
    """All checks in one job, and what it has left."""
    name, nodes, ranks = request.param
    launcher = jobs.find(name)

    def run(folder):
        own_tmp = tmp_path_factory.mktemp("tmp")
        before = set(os.listdir("/dev/shm"))
        ended = jobs.run(launcher, nodes, ranks, folder, *CHECKS, TMPDIR=str(own_tmp))
        left = [n for n in set(os.listdir("/dev/shm")) - before if "gpucomm" in n]
        left += [n for n in os.listdir(own_tmp) if not n.startswith("torchelastic")]
        return ended, left

    return once(tmp_path_factory, f"job-{of(request.param)}", run)


@pytest.mark.parametrize("check", CHECKS)
def test_job(job, check):
    ended, _ = job
    assert [report.get(check) for report in ended.reports] == [[]] * len(ended.reports), ended.output


def test_job_ends_well_and_leaves_nothing(job):
    ended, left = job
    assert (ended.code, left) == (0, []), ended.output


@pytest.fixture(scope="module", params=[j for j in JOBS if j[1] in ("4x1", "2x2")], ids=of)
def faulty_job(request, tmp_path_factory):
    """The job, and the folder of its flight logs."""
    name, nodes, ranks = request.param
    launcher = jobs.find(name)

    def run(folder):
        logs = tmp_path_factory.mktemp("logs")
        env = {"GPUCOMM_FLIGHT_DIR": str(logs)}
        ended = jobs.run(launcher, nodes, ranks, folder, "faults", "untouched", **env)
        assert ended.code == 0, ended.output
        return ended, logs

    return once(tmp_path_factory, f"faulty-job-{of(request.param)}", run)


@pytest.fixture(scope="module")
def faults(faulty_job):
    return [report["faults"] for report in faulty_job[0].reports]


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("count", "MismatchError", "do not make the same call.*(200.*100|100.*200)"),
        ("algorithm", "MismatchError", "do not make the same call.*(ring.*direct|direct.*ring)"),
        ("pair", "MismatchError", "(3.*4|4.*3)"),
        ("two roots", "MismatchError", "do not make the same call.*(root 0.*root 3|root 3.*root 0)"),
        ("missing", "CollectiveTimeoutError", r"ranks that came: .*; missing: 1\b"),
        ("refused", "MismatchError", r"rank 1's reduce #1 was refused: root must be in \[0, 4\), got 4"),
        ("refused message", "MismatchError", r"rank 1's send #1 to rank 0 was refused: .*contiguous"),
        ("shrunk", "UnavailableError", "memory that all ranks share"),
        ("closed", "PeerLostError", "rank 1 has closed its communicator"),
        ("aborted", "ClosedError", r"rank 1 of 4 called abort\(\)"),
    ],
)
def test_a_fault_is_told_on_every_rank_and_soon(faults, fault, kind, words):
    for rank, found in enumerate(faults):
        name, text, seconds = found[fault]
        if rank == 1 and fault in ("closed", "aborted"):
            assert name == "nothing" and seconds < PROMPT_S
            continue
        assert (name, bool(re.search(words, text))) == (kind, True), (rank, name, text)
        assert seconds < PROMPT_S, (rank, text)


def test_what_is_not_alike_touches_nothing(faulty_job):
    assert [report["untouched"] for report in faulty_job[0].reports] == [[]] * 4


@pytest.mark.parametrize(
    ("error", "difference"),
    [
        (
            "sum of (200 .*100|100 .*200) ",
            r"the ranks differ in call 1: rank 0: .*sum of 200 .*; rank \d: .*sum of 100 ",
        ),
        (
            "100000 float64, algorithm (ring.*direct|direct.*ring)",
            r"the ranks differ in call 1: rank 0: .*ring, .*; rank \d: .*direct, ",
        ),
        ("missing: 1", r"all_reduce #1 \(sum of 1000 .*: ranks \[0, 2, 3\] came, ranks \[1\] did not"),
    ],
)
def test_the_flight_logs_of_all_nodes_tell_the_first_difference(faulty_job, capsys, error, difference):
    logs = [(file, json.loads(file.read_text())) for file in faulty_job[1].iterdir()]
    (which,) = {log["communicator"] for _, log in logs if re.search(error, log["error"])}
    files = {log["rank"]: str(file) for file, log in logs if log["communicator"] == which}
    assert sorted(files) == [0, 1, 2, 3]
    assert cli.main(["flight", *files.values()]) == 0
    said = capsys.readouterr().out
    assert re.search(difference, said), said


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("mpich", "exit_of_one"),
        ("openmpi", "exit_of_one"),
        ("forks", "exit_of_one"),
        ("forks", "end_of_one_in_a_group"),
    ],
)
def test_a_rank_that_exits_is_named(name, check, tmp_path):
    ended = jobs.run(jobs.find(name), "2x2", 4, tmp_path, check)
    assert ended.code == 0, ended.output
    for rank in (0, 2, 3):
        kind, text, seconds = ended.reports[rank][check]
        assert kind == "PeerLostError" and "rank 1" in text and seconds < PROMPT_S, (rank, text)


def test_a_rank_ends_well_though_nobody_hears_what_it_said(tmp_path):
    ended = jobs.run(jobs.find("forks"), "4x1", 4, tmp_path, "heard_by_nobody")
    assert ended.code == 0, ended.output
    assert [report.get("heard_by_nobody") for report in ended.reports] == [None, [], None, []], ended.output


def test_a_rank_that_has_left_takes_nobody_with_it(tmp_path):
    ended = jobs.run(jobs.find("forks"), "2x2", 4, tmp_path, "left_by_one")
    assert [report.get("left_by_one") for report in ended.reports] == [[]] * 4, ended.output


@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_the_launcher_ends_a_job_whose_rank_was_killed(name, tmp_path):
    ended = jobs.run(jobs.find(name), "4x1", 4, tmp_path, "kill_of_one", timeout=60)
    assert ended.code != 0
    assert re.search(r"signal:? 9|SIGKILL|Signal 9|exited on signal 9", ended.output), ended.output


THREADS = """
import mpi4py
mpi4py.rc.thread_level = "single"
import gpucomm
try:
    gpucomm.init(timeout=20)
except gpucomm.errors.UnavailableError as error:
    assert "MPI_THREAD_MULTIPLE" in str(error) and "mpi4py.rc.thread_level" in str(error), error
    raise SystemExit(7)
"""


@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_mpi_for_one_thread_is_refused(name, tmp_path):
    (tmp_path / "program.py").write_text(THREADS)
    launcher = jobs.find(name)
    told = {"GPUCOMM_TRANSPORT": "mpi"}
    command = [*launcher.command(2, list(told)), str(tmp_path / "program.py")]
    code, output, _ = jobs.wait_for(command, jobs.environment(**told), 60)
    assert code == 7, output


def by_mpi(name, program, folder):
    """What two ranks of a program say, which knows its own by RANK, and the exit code."""
    number = 'import os\nRANK = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])\n'
    (folder / "program.py").write_text(number + program)
    told = {"GPUCOMM_TRANSPORT": "mpi", "GPUCOMM_NODES": "2x1"}
    command = [*jobs.find(name).command(2, list(told)), str(folder / "program.py"), str(folder)]
    code, output, _ = jobs.wait_for(command, jobs.environment(**told), 60)
    return code, output


LEFT_EARLY = """
import sys, time
from pathlib import Path
left = Path(sys.argv[1], "left")

def lives(pid):
    try:
        return Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

if RANK:
    left.with_suffix(".new").write_text(str(os.getpid()))
    left.with_suffix(".new").rename(left)
    sys.exit()
while not left.exists() or lives(left.read_text()):
    time.sleep(0.01)
time.sleep(0.3)  # Open MPI sees that it is gone: it ends all where one leaves when another has begun
import gpucomm
gpucomm.init(timeout=3)
"""


@pytest.mark.parametrize("name", ["mpich", "debian"])
def test_who_waits_in_mpi_init_for_a_rank_that_never_comes_ends(name, tmp_path):
    code, output = by_mpi(name, LEFT_EARLY, tmp_path)
    assert code != 0 and "gpucomm: rank 0 of 2 waited 3 s in MPI_Init for all ranks" in output, output


AGAIN = """
import sys, time
from pathlib import Path
from mpi4py import MPI
import gpucomm
failed = Path(sys.argv[1], "failed")
if RANK == 0:
    try:
        gpucomm.init(timeout=1)
    except gpucomm.errors.CollectiveTimeoutError:
        failed.touch()
while not failed.exists():
    time.sleep(0.01)
gpucomm.init(timeout=30).barrier()
print("met", flush=True)
"""


@pytest.mark.parametrize("name", ["mpich", "debian"])
def test_who_met_in_vain_by_mpi_may_try_again(name, tmp_path):
    code, output = by_mpi(name, AGAIN, tmp_path)
    assert code == 0 and output.count("met") == 2, output


IN_VAIN = """
import time
from mpi4py import MPI
import gpucomm
if RANK:
    time.sleep(100)
gpucomm.init(timeout=1)
"""


def test_who_met_in_vain_by_mpi_ends_though_mpi_waits_for_all(tmp_path):
    code, output = by_mpi("mpich", IN_VAIN, tmp_path)
    assert code != 0
    assert "CollectiveTimeoutError" in output and "this process ends without it" in output, output


def test_ranks_that_another_launcher_started_are_told(tmp_path):
    launcher = jobs.find("mpich")
    code = (
        "import gpucomm\ntry: gpucomm.init()\nexcept gpucomm.errors.UnavailableError as error: print(error)"
    )
    env = jobs.environment(RANK="1", WORLD_SIZE="2", GPUCOMM_TRANSPORT="mpi")
    done = subprocess.run([launcher.python, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert "rank 1 of 2, as its launcher says, is rank 0 of 1 to MPICH" in done.stdout, done.stderr
    assert "that MPI's own mpiexec" in done.stdout


@pytest.fixture
def two_ranks(monkeypatch):
    for name in set(os.environ) - set(jobs.environment()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


def test_without_mpi4py_a_sentence_says_what_to_install(two_ranks, monkeypatch):
    monkeypatch.setenv("GPUCOMM_TRANSPORT", "mpi")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(errors.UnavailableError, match=r"rank 1 of 2: .*pip install 'gpucomm\[mpi\]'"):
        gpucomm.init()


@pytest.mark.parametrize("transport", ["mpi", "c10d"])
def test_links_are_not_emulated_between_nodes(two_ranks, monkeypatch, transport):
    monkeypatch.setenv("GPUCOMM_TRANSPORT", transport)
    monkeypatch.setenv("GPUCOMM_LINKS", "switch:1Gbit")
    with pytest.raises(errors.InvalidArgumentError, match=f"transport '{transport}' .*unset GPUCOMM_LINKS"):
        gpucomm.init()


def test_a_call_waits_as_long_as_it_says_whatever_init_was_told(tmp_path):
    ended = jobs.run(jobs.find("forks"), "2x1", 2, tmp_path, "late", JOB_TIMEOUT="4")
    assert [report["late"] for report in ended.reports] == [[], []], ended.output


@pytest.mark.parametrize("name", ["mpich", "debian"])
def test_who_waits_in_vain_for_a_rank_ends_though_mpi_waits_for_all(name, tmp_path):
    ended = jobs.run(jobs.find(name), "2x1", 2, tmp_path, "hang_of_one", timeout=40)
    assert ended.code != 0
    assert "CollectiveTimeoutError" in ended.output and "this process ends without it" in ended.output, (
        ended.output
    )


@pytest.mark.parametrize("name", ["mpich", "forks"])
def test_two_versions_in_one_job_are_a_sentence(name, tmp_path):
    launcher = jobs.find(name)
    program = tmp_path / "two_versions.py"
    program.write_text(
        "import os, sys\nfrom gpucomm import _core, errors\n"
        "if '1' in (os.environ.get('PMI_RANK'), os.environ.get('RANK')):\n    _core.version = '9.9.9'\n"
        "import gpucomm\ntry:\n    gpucomm.init(timeout=20)\n"
        "except errors.MismatchError as error:\n    print(error, flush=True)\n"
    )
    told = {"GPUCOMM_TRANSPORT": launcher.transport, "GPUCOMM_NODES": "2x1"}
    command = [*launcher.command(2, list(told)), str(program)]
    code, output, _ = jobs.wait_for(command, jobs.environment(**told), 60)
    assert code == 0, output
    assert f"rank 0 of 2 runs gpucomm {gpucomm.__version__}, and rank 1 another version than rank 0" in output
    assert "rank 1 of 2 runs gpucomm 9.9.9, and rank 1 another version than rank 0" in output
