"""Faults while ranks read and write each other's arrays in place, and what an operating system can refuse."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import compiled
import numpy as np
import pytest
import rank_processes
from ranks import outcomes_of

import gpucomm
from gpucomm import _core, errors


def is_shared(x):
    """Whether it lies where other processes see it: a mapping of a file."""
    address = x.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        (begin, end), inode = (int(n, 16) for n in line.split()[0].split("-")), line.split()[4]
        if begin <= address < end:
            return inode != "0"
    raise AssertionError("it lies nowhere")


def owner_beside_a_fault(comm):
    x, y = gpucomm.empty(4 << 20, comm=comm), np.ones(1000)
    x[:] = 1
    comm.all_reduce(x, algorithm="direct", segments=1)
    if comm.rank == 1:
        comm.recv(np.empty(1), 0)
        comm.abort()
        return True
    comm.send(np.ones(1), 1)  # which is no call of the collectives: x's is the last
    while not comm.closed:
        time.sleep(0.01)
    with pytest.raises(errors.ClosedError):
        comm.all_reduce(y, algorithm="direct", segments=1, async_op=True).wait()
    return is_shared(x[-1:])  # of what the other rank has written


@pytest.mark.processes
def test_a_fault_leaves_the_array_of_an_earlier_call_where_it_is():
    """What threads write to it meanwhile must not be lost."""
    with gpucomm.local(2, env={"PYTHONPATH": str(Path(__file__).parent)}) as world:
        assert world.run(owner_beside_a_fault) == [True, True]


def test_after_a_timeout_nobody_gets_what_the_owner_writes_then():
    given_up = threading.Event()

    def body(comm):
        x = gpucomm.empty(100_000, comm=comm)
        x[:] = comm.rank
        comm.barrier()
        if comm.rank == 0:
            with pytest.raises(errors.CollectiveTimeoutError, match="missing: 1"):
                comm.broadcast(x, 0, algorithm="direct", timeout=0.05, segments=1)
            x[:] = 5
            given_up.set()
            return set(x.tolist())
        assert given_up.wait(20)
        with pytest.raises(errors.CollectiveTimeoutError, match="rank 0 reports"):
            comm.broadcast(x, 0, algorithm="direct", segments=1)
        return set(x.tolist())

    assert outcomes_of(2, body) == [{5.0}, {1.0}]


SCRIPT = """
import json, sys
import gpucomm
comm = gpucomm.init()
x = {array}
x[:] = 1
wait = 30.0  # on a busy machine one may be here long before the other, and the first calls are slow
comm.barrier(timeout=wait)
try:
    i = 0
    while True:
        {call}
        i += 1
        if i == 5:
            print("started", flush=True)
            wait = {timeout}
except gpucomm.errors.Error as error:
    x[:] = 5
    print(json.dumps([type(error).__name__, str(error), comm.closed]), flush=True)
sys.stdin.readline()
print(json.dumps(bool((x == 5).all())), flush=True)
"""


FOLDED = 'comm.all_reduce(x, op="mean", algorithm="direct", segments=1, timeout=wait)'
WRITTEN = 'comm.broadcast(x, 1, algorithm="direct", segments=1, timeout=wait)'  # in part by the root
SENT = "comm.send(x, 0, timeout=wait) if comm.rank else comm.recv(x, 1, timeout=wait)"


def start(world: int, **options: object) -> list[subprocess.Popen[str]]:
    script = SCRIPT.format(**{"timeout": 3.0, "array": "gpucomm.empty(1 << 22)", "call": FOLDED} | options)
    return rank_processes.start(script, [{"GPUCOMM_CMA": "2"}] * world)


@pytest.mark.processes
@pytest.mark.parametrize("array", ["gpucomm.empty(1 << 22)", "__import__('numpy').empty(1 << 22, 'float32')"])
@pytest.mark.parametrize("algorithm", ["direct", "ring", "linear_pipeline"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_named_and_arrays_stay_usable(ranks, array, algorithm, victim):
    ranks += start(3, array=array, call=FOLDED.replace("direct", algorithm), timeout=20)
    for process in ranks:
        assert process.stdout.readline() == "started\n"
    ranks[victim].send_signal(signal.SIGKILL)
    for rank in {0, 1, 2} - {victim}:
        kind, text, closed = json.loads(ranks[rank].stdout.readline())
        assert kind == "PeerLostError" and closed, text
        assert f"rank {victim} is gone (pid {ranks[victim].pid} has ended)" in text
        out, _ = ranks[rank].communicate("\n", timeout=20)
        assert json.loads(out) is True


@pytest.mark.processes
@pytest.mark.parametrize("attempt", range(3))
@pytest.mark.parametrize(
    ("array", "call"),
    [
        ("gpucomm.empty(1 << 22)", FOLDED),
        ("__import__('numpy').empty(1 << 22, 'float32')", FOLDED),
        ("__import__('numpy').empty(1 << 24, 'float32')", WRITTEN),
        ("__import__('numpy').empty(1 << 20, 'float32')", SENT),
    ],
    ids=["folded", "folded private", "written", "sent"],
)
def test_a_rank_that_wakes_late_writes_into_nobodys_array(ranks, array, call, attempt):
    """Stopped anywhere, often in the middle of an answer, it goes on with that once it is woken."""
    ranks += start(2, timeout=1, array=array, call=call)
    for process in ranks:
        assert process.stdout.readline() == "started\n"
    ranks[1].send_signal(signal.SIGSTOP)
    kind, text, _ = json.loads(ranks[0].stdout.readline())  # then its array is all 5
    assert kind == "CollectiveTimeoutError" and "stopped" in text
    ranks[1].send_signal(signal.SIGCONT)
    assert "reports: " in json.loads(ranks[1].stdout.readline())[1]
    out, _ = ranks[0].communicate("\n", timeout=20)
    assert json.loads(out) is True


@pytest.mark.processes
@pytest.mark.parametrize(
    ("call", "count"), [(FOLDED, 1 << 18), (WRITTEN, 1 << 24)], ids=["folded", "written"]
)
def test_a_rank_that_is_stopped_about_to_write_writes_into_nobodys_array(
    ranks, call, count, tmp_path, tmp_path_factory
):
    """Another process's private memory: it has looked where to, and goes on once it is woken."""
    source, when = Path(__file__).parent / "stopping_writer.cpp", tmp_path / "now"
    library = compiled.shared_object(tmp_path_factory, "stopping_writer.so", [source])
    script = SCRIPT.format(timeout=1, array=f"__import__('numpy').empty({count}, 'float32')", call=call)
    stops = {"LD_PRELOAD": str(library), "STOPS_WHEN": str(when)}
    ranks += rank_processes.start(script, [{"GPUCOMM_CMA": "2"}, {"GPUCOMM_CMA": "2", **stops}])
    for process in ranks:
        assert process.stdout.readline() == "started\n"
    when.touch()
    deadline = time.monotonic() + 40
    while (state := Path(f"/proc/{ranks[1].pid}/stat").read_text().rsplit(")")[-1].split()[0]) != "T":
        if time.monotonic() > deadline:
            readers = run("import gpucomm; comm = gpucomm.init(); comm.barrier(); print(comm.readers)")
            assert "{1: ''}" not in readers, f"rank 1 is {state}: it writes in no other's memory"
            pytest.skip(f"processes may not read each other here: {readers}")
        time.sleep(0.01)
    assert json.loads(ranks[0].stdout.readline())[0] == "CollectiveTimeoutError"
    ranks[1].send_signal(signal.SIGCONT)
    assert "reports: " in json.loads(ranks[1].stdout.readline())[1]
    assert json.loads(ranks[0].communicate("\n", timeout=20)[0]) is True


# Of the programs below.
MAY_MAP = """
import resource
def may_map(more):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))
"""


def run(body: str, world: int = 2, before: str = "", **env: str) -> str:
    """What rank 0 of a program prints; `before`: a shell command in the same mount namespace."""
    program = [sys.executable, "-c", MAY_MAP + textwrap.dedent(body)]
    command = [sys.executable, "-m", "gpucomm", "run", "-n", str(world), "--no-python", *program]
    if before:
        if not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
            pytest.skip("no mount namespace may be made here (unshare -rm)")
        command = ["unshare", "-rm", "sh", "-c", f'{before} && exec "$@"', "sh", *command]
    done = subprocess.run(
        command, env=os.environ | env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.processes
def test_a_full_dev_shm_does_not_matter():
    body = """
        import gpucomm
        comm = gpucomm.init()
        x = gpucomm.empty(1 << 22)
        x[:] = 1
        comm.all_reduce(x)
        print(x[-1]) if comm.rank == 0 else None
    """
    full = "mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full"
    assert run(body, before=full) == "2.0\n"


@pytest.mark.processes
def test_memory_that_the_machine_does_not_have_is_a_sentence(tmp_path):
    """A region on a small file system: its pages run out when a block is made, not when it is touched."""
    body = f"""
        import os
        from gpucomm import Communicator, _core, errors, empty
        made = _core.shm_create(1, 64 << 20)
        path = "{tmp_path}/region"
        size = os.fstat(made).st_size
        with open(path, "wb") as file:
            os.sendfile(file.fileno(), made, 0, 9 << 20)  # the headers of the mailboxes
            file.truncate(size)
        comm = Communicator("shm", 0, 1, fd=os.open(path, os.O_RDWR))
        x = empty(1 << 20, "uint8", comm=comm)
        x[:] = 1
        try:
            empty(32 << 20, "uint8", comm=comm)
        except errors.UnavailableError as error:
            print(error)
        print(int(x.sum()), comm.heap["used_bytes"])
    """
    out = run(body, world=1, before=f"mount -t tmpfs -o size=16m none {tmp_path}")
    assert "no 33554432 bytes of shared memory more (No space left on device)" in out
    assert out.endswith(f"{1 << 20} {1 << 20}\n")


@pytest.mark.processes
def test_where_little_may_be_mapped_the_heap_is_smaller():
    body = """
        import numpy as np
        may_map(1 << 30)
        import gpucomm
        comm = gpucomm.init()
        x = gpucomm.empty(1 << 20)
        x[:] = 1
        comm.all_reduce(x)
        assert x[-1] == 2 and 0 < comm.heap["size_bytes"] < 1 << 29
        print("fits") if comm.rank == 0 else None
    """
    assert run(body) == "fits\n"


@pytest.mark.processes
def test_many_communicators_leave_a_fourth_of_a_limit_to_the_process():
    body = """
        import numpy as np
        import gpucomm
        may_map(8 << 30)
        comm = gpucomm.init()
        groups = [comm.split(0) for _ in range(10)]
        assert comm.heap["size_bytes"] > 0
        x = np.empty(3 << 29, np.uint8)  # only addresses: nobody writes to it
        print("fits") if comm.rank == 0 else None
    """
    assert run(body) == "fits\n"


@pytest.mark.processes
def test_a_rank_that_may_not_map_the_heaps_takes_part_without():
    body = """
        import os
        if os.environ["GPUCOMM_RANK"] == "1":
            may_map(1 << 29)
        import numpy as np
        import gpucomm
        comm = gpucomm.init()
        x = gpucomm.empty(1 << 20) if comm.rank == 0 else np.empty(1 << 20, np.float32)
        x[:] = 1
        comm.all_reduce(x, algorithm="direct")
        assert x[-1] == 2
        if comm.rank == 1:
            try:
                gpucomm.empty(3)
            except gpucomm.errors.UnavailableError as error:
                assert "may not map the ranks' heaps" in str(error), error
            else:
                raise AssertionError("it has a heap")
        print("done") if comm.rank == 0 else None
    """
    assert run(body) == "done\n"


@pytest.mark.processes
def test_no_heap_by_the_environment():
    body = """
        import gpucomm
        print(gpucomm.init().heap["size_bytes"]) if gpucomm.init().rank == 0 else None
    """
    assert run(body, GPUCOMM_HEAP_MIB="0") == "0\n"
    assert run(body, GPUCOMM_HEAP_MIB="64") == f"{64 << 20}\n"


@pytest.mark.processes
def test_a_forked_child_keeps_its_hands_off():
    body = """
        import os, sys
        import gpucomm
        comm = gpucomm.init()
        x, y = gpucomm.empty(1 << 20), gpucomm.empty(300 << 18)  # so much goes back to the machine
        x[:] = y[:] = 3
        group = comm.split(0)
        work = comm.recv(x[:8], 1 - comm.rank, async_op=True)
        child = os.fork()
        if not child:
            del y, group
            for call in (lambda: gpucomm.empty(3, comm=comm), work.wait):
                try:
                    call()
                except gpucomm.errors.ClosedError as error:
                    assert "fork" in str(error)
                else:
                    os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert (x == 3).all() and (y == 3).all()
        group.barrier()
        comm.send(x[8:16], 1 - comm.rank)
        work.wait()
        comm.all_reduce(x)
        assert (x == 6).all()
        print("whole") if comm.rank == 0 else None
    """
    assert run(body) == "whole\n"


def test_freed_in_another_thread_and_after_all_else():
    comm = gpucomm.Communicator("local", 0, 1, region=_core.Region(1))
    blocks = [comm.heap_block(1 << 16) for _ in range(64)]
    before = comm.heap["used_bytes"]
    threads = [threading.Thread(target=blocks.pop) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert before - comm.heap["used_bytes"] == 64 << 16
    assert np.frombuffer(comm.heap_block(8), np.uint8).size == 8


@pytest.mark.processes
@pytest.mark.skipif(platform.machine() != "x86_64", reason="knows how many addresses there are here")
def test_many_communicators_leave_addresses_to_arrays():
    body = """
        import resource
        import numpy as np
        import gpucomm
        comm = gpucomm.init()
        groups = [comm.split(0) for _ in range(12)]
        mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        assert 1 << 46 < mapped <= (1 << 47) - (200 << 30), mapped  # of 47 bits
        assert groups[0].heap["size_bytes"] > groups[-1].heap["size_bytes"]
        sums = groups[-1].all_reduce(np.ones(3))
        print(sums[0]) if comm.rank == 0 else None
    """
    assert run(body, GPUCOMM_HEAP_MIB=str(16 << 20)) == "2.0\n"


@pytest.mark.processes
def test_a_core_dump_leaves_the_heaps_out():
    """Writing what is only addresses would give it memory: all of the machine's."""
    body = """
        import gpucomm
        comm = gpucomm.init()
        mapped = open("/proc/self/smaps").read().split("memfd:gpucomm")[1:]
        flags = [part.split("VmFlags:")[1].splitlines()[0].split() for part in mapped]
        assert len(flags) >= 2 and all("dd" in some for some in flags), flags
        print("left out") if comm.rank == 0 else None
    """
    assert run(body) == "left out\n"
