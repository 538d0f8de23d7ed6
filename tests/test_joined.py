"""`gpucomm.init()` where not the launcher's variables tell the ranks, but torch.distributed."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from test_launch import environment

import gpucomm
from gpucomm import errors
from gpucomm.launch import attempt, c10d, store
from gpucomm.launch.attempt import all_say, own_store
from gpucomm.launch.processes import base_environment
from gpucomm.launch.ranks import Ranks

pytestmark = pytest.mark.processes


def test_an_attempt_that_some_never_joined_does_not_count(monkeypatch):
    """Torchrun keeps the store, and starts all ranks anew."""
    kept = dist.HashStore()
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    for restart, came in (("0", 2), ("1", 3), ("1", 3)):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
        stores = [own_store(kept, 0, 3, 5) for _ in range(came)]
        stores[0].set("who", "first")
        assert [one.get("who") for one in stores] == [b"first"] * came
        assert stores[0].add("used", 1) == 1


def test_agents_of_several_nodes_count_attempts_each_by_itself(monkeypatch):
    kept = dist.HashStore()
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    stores = []
    for restart in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
        stores.append(own_store(kept, 0, 2, 5))
    stores[0].set("who", "first")
    assert stores[1].check(["who"])


def test_what_a_rank_said_first_counts():
    kept = dist.HashStore()
    with pytest.raises(errors.CollectiveTimeoutError, match=r"^rank 0 of 2 waited 0\.01 s .* ranks \[1\],"):
        all_say("early", kept, 0, 2, 0.01, "the job")
    assert all_say("other", kept, 1, 2, 5, "the job") == [b"early", b"other"]
    assert all_say("late", kept, 0, 2, 5, "the job") == [b"early", b"other"]


def test_ranks_of_several_nodes_that_do_not_come_are_named(monkeypatch):
    kept = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(c10d, "_launchers", [])
    told = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(kept.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    said = r"rank 1 of 3 waited 0\.5 s in the store of the launcher for ranks \[0, 2\], which did not come"
    for _ in range(2):
        with pytest.raises(errors.CollectiveTimeoutError, match=said):
            c10d.open_c10d(Ranks(1, 3, "job", "torchrun"), 0.5)
    later = [own_store(kept, rank, 3, 5) for rank in (0, 2)]  # who tried twice counts once
    assert [store.check(["member 1"]) for store in later] == [True, True]


def test_a_store_that_cannot_be_served_is_no_timeout(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(c10d, "_launchers", [])
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
        with pytest.raises(errors.UnavailableError, match=r"rank 0 of 2 could not meet .*: .*EADDRINUSE"):
            c10d.open_c10d(Ranks(0, 2, "job", "torchrun"), 20)


def test_who_serves_the_store_says_how_many_have_come_by_its_deadline(monkeypatch):
    monkeypatch.setattr(c10d, "_launchers", [])
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    said = r"^rank 0 of 2 could not meet .* within 1 s: .* 1/2 clients joined"
    with pytest.raises(errors.CollectiveTimeoutError, match=said):
        c10d.open_c10d(Ranks(0, 2, "job", "torchrun"), 1)


def test_a_torch_without_gloo_is_told(monkeypatch):
    monkeypatch.delattr(dist, "ProcessGroupGloo")
    with pytest.raises(errors.UnavailableError, match=r"^rank 1 of 2: .*ProcessGroupGloo.*: install PyTorch"):
        c10d.open_c10d(Ranks(1, 2, "job", "torchrun"), 20)


def test_a_variable_of_torchrun_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(c10d, "_launchers", [])
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(errors.InvalidArgumentError, match=r"^rank 1 of 2 cannot meet .*MASTER_ADDR"):
        c10d.open_c10d(Ranks(1, 2, "job", "torchrun"), 20)


def test_a_store_that_does_not_answer_is_a_lost_peer():
    def check(keys):
        raise dist.DistNetworkError("Failed to recv\nException raised from ...")

    said = r"^rank 1 of 3: the store of the job does not answer, .* ended \(Failed to recv\)$"
    with pytest.raises(errors.PeerLostError, match=said):
        all_say("", SimpleNamespace(check=check), 1, 3, 5, "the job")


def test_a_store_that_never_answers_has_a_deadline(monkeypatch):
    monkeypatch.setattr(attempt, "_LATE_S", 0.05)
    never = threading.Event()
    store = SimpleNamespace(check=lambda keys: never.wait(20))
    said = r"^rank 1 of 3: torch's store has not answered within 0\.1 s"
    with pytest.raises(errors.CollectiveTimeoutError, match=said):
        all_say("", store, 1, 3, 0.1, "the job")
    never.set()


def test_a_store_is_asked_with_any_patience_and_keeps_no_process():
    def ask():
        time.sleep(0.05)
        return threading.current_thread().daemon

    assert attempt.within(1e12, "rank 0 of 1", ask)


@pytest.mark.parametrize(
    ("timeout", "kind", "said"),
    [
        (0.05, errors.CollectiveTimeoutError, r"rank 1 of 2 could not meet .* within 0\.05 s: no answer"),
        (20, errors.UnavailableError, r"rank 1 of 2 could not meet .* by torch\.distributed: no answer"),
    ],
)
def test_ranks_whose_connections_fail_are_told_whether_it_took_too_long(monkeypatch, timeout, kind, said):
    def fail(*_):
        time.sleep(0.05)
        raise RuntimeError("no answer")

    kept = dist.HashStore()
    kept.set("member 0", "")
    monkeypatch.setattr(c10d, "gloo_group", fail)
    with pytest.raises(kind, match=said):
        c10d.open_c10d(Ranks(1, 2, "job", "store"), timeout, kept)


def test_whatever_ends_a_receive_is_told():
    events, told = iter([SimpleNamespace(line="a line"), None]), []
    wire = SimpleNamespace(next_event=lambda: next(events), fail=lambda *what: told.append(what))

    def fail(event):
        raise MemoryError

    c10d._Server._serve(SimpleNamespace(wire=wire, _handle=fail))
    assert told == [("a line", "MemoryError")]


PROGRAM = textwrap.dedent("""
    import logging, os, sys, threading
    import numpy as np
    import torch.distributed as dist
    import gpucomm

    rank, path = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    logging.basicConfig(level="INFO", format="%(message)s")

    def show(**variables):
        os.environ.update(variables)
        with gpucomm.init(20) as comm:
            assert comm is gpucomm.init()
            total = comm.all_reduce(np.array([comm.rank + 1]))[0]
            print(comm.rank, comm.world, total, comm.transport, *comm.nodes)

    show()
    show(WORLD_SIZE="2", LOCAL_RANK=str(rank))  # as Lightning leaves it
    show(GPUCOMM_NODES="2x1")
    show(GPUCOMM_TRANSPORT="c10d")
    show(GPUCOMM_NODES="")
    assert sum(thread.name == "gpucomm-c10d" for thread in threading.enumerate()) == 1
    dist.destroy_process_group()
""")
RETRY = textwrap.dedent("""
    import os, sys, time
    import torch.distributed as dist
    import gpucomm
    from gpucomm.errors import CollectiveTimeoutError

    rank, path = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    if rank == 0:
        try:
            gpucomm.init(0.2)
        except CollectiveTimeoutError as error:
            assert "for ranks [1], which did not come" in str(error)
            print("late")
        open(path + ".now", "w").close()
    while not os.path.exists(path + ".now"):
        time.sleep(0.01)
    with gpucomm.init(20) as comm:
        print(comm.world)
    dist.destroy_process_group()
""")


def started(ranks: list[subprocess.Popen[str]], program: str, tmp_path: Path) -> list[tuple[str, str]]:
    """Runs a program as two ranks that meet in a file; what each prints and says."""
    ranks += [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(tmp_path / "store")],
            env=environment(GLOO_SOCKET_IFNAME="lo"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    return [process.communicate(timeout=100) for process in ranks]


def test_the_ranks_of_its_default_group(ranks: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    for rank, (out, said) in enumerate(started(ranks, PROGRAM, tmp_path)):
        one, two = f"{rank} 2 3 shm 0 0", f"{rank} 2 3 shm 0 1"
        assert out.splitlines() == [one, one, two, f"{rank} 2 3 c10d 0 1", f"{rank} 2 3 c10d 0 0"], said
        assert f"rank {rank} of 2: started by torch.distributed, transport shm, nodes [0, 0]" in said


def test_who_was_too_early_meets_the_others_later(ranks: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    (first, said), (second, more) = started(ranks, RETRY, tmp_path)
    assert (first.split(), second.split()) == (["late", "2"], ["2"]), said + more


RESTARTED = textwrap.dedent("""
    import os
    import numpy as np
    import gpucomm

    with gpucomm.init(20) as comm:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and comm.rank == 1:
            os._exit(3)
        os.write(1, f"{comm.transport} {comm.all_reduce(np.array([comm.rank + 1]))[0]}\\n".encode())
""")


def test_after_a_restart_the_ranks_of_several_nodes_meet_again(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(RESTARTED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]
    command += ["--nproc-per-node=2", "--monitor-interval=0.1", str(tmp_path / "program.py")]
    told = environment(GLOO_SOCKET_IFNAME="lo", GPUCOMM_NODES="0,1", GPUCOMM_TRANSPORT="c10d")
    done = subprocess.run(
        command,
        env=told | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.split() == ["c10d", "3"] * 2, done.stderr


def test_a_world_in_a_rank_has_ranks_of_its_own() -> None:
    told = {"GPUCOMM_RANK": "1", "RANK": "1", "WORLD_SIZE": "3", "MASTER_PORT": "1", "OMP_NUM_THREADS": "2"}
    base = base_environment(told)
    assert "RANK" not in base and base["MASTER_PORT"] != "1" and base["OMP_NUM_THREADS"] == "2"
    assert base_environment({"RANK": "1", "MASTER_PORT": "1"})["MASTER_PORT"] == "1"


def test_alone_in_it_the_environment_counts() -> None:
    assert store.joined(1) is None
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert store.joined(1) is None
        with gpucomm.init() as comm:
            assert comm.world == 1
    finally:
        dist.destroy_process_group()


def test_torch_meets_under_our_launcher(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "os.write(1, f'{dist.get_rank()} {dist.get_world_size()}\\n'.encode())\n"
        "dist.destroy_process_group()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "gpucomm", "run", "-n", "2", str(program)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert sorted(done.stdout.splitlines()) == ["0 2", "1 2"], done.stderr
