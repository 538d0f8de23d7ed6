"""Real faults: ranks die or stop in the middle of calls. The others raise, name the rank, exit cleanly."""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
import rank_processes
from ranks import PROMPT_S

from gpucomm import Communicator, _core, errors

pytestmark = pytest.mark.processes

START_S = 30.0  # for ranks to meet, and to come to their first calls
TIMEOUT_S = 3.0

SCRIPT = """
import json, sys
import numpy as np
import gpucomm
comm = gpucomm.init(timeout={start})
x, y, *many = (np.ones({count}, np.float32) for _ in range(6))
kind = "{kind}"
try:
    i = 0
    while True:
        how = dict(timeout={start} if i < 5 else {timeout})
        if kind == "async":
            works = [
                comm.all_reduce(x, op="mean", algorithm="{algorithm}", async_op=True, **how) for x in many
            ]
            [work.wait() for work in works]
        elif kind == "barrier":
            comm.barrier(**how)
        elif kind == "messages":
            comm.sendrecv(x, (comm.rank + 1) % comm.world, y, (comm.rank - 1) % comm.world, **how)
        else:
            comm.all_reduce(x, op="mean", algorithm="{algorithm}", **how)
        i += 1
        if i == 5:
            print("started", flush=True)
            if kind == "abort" and comm.rank == 0:
                comm.abort()
except gpucomm.errors.Error as error:
    print(json.dumps([type(error).__name__, str(error), comm.closed]), flush=True)
"""


def start(world: int, **options) -> list[subprocess.Popen]:
    script = SCRIPT.format(
        **{"start": START_S, "timeout": TIMEOUT_S, "count": 1 << 20, "kind": "blocking", "algorithm": "ring"}
        | options
    )
    return rank_processes.start(script, [{}] * world)


def survivors(processes: list[subprocess.Popen], victim: int) -> list[tuple[str, str, bool]]:
    found = []
    for rank, process in enumerate(processes):
        if rank != victim:
            out, _ = process.communicate(timeout=20)
            assert process.returncode == 0
            found.append(tuple(json.loads(out.splitlines()[-1])))
    return found


def allowed(kind: str, options: dict[str, str]) -> set[str]:
    """An asynchronous call may be issued after an earlier one has failed: it repeats why all is closed."""
    return {kind, "ClosedError"} if options.get("kind") == "async" else {kind}


KILLED = [
    {"algorithm": "ring"},
    {"algorithm": "linear_pipeline"},
    {"algorithm": "direct"},
    {"kind": "async"},
    {"kind": "barrier"},
    {"count": 3, "algorithm": "one_shot"},
    {"kind": "messages"},
    {"kind": "messages", "count": 3},
]


@pytest.mark.parametrize("options", KILLED)
def test_a_killed_rank_is_named_at_once(ranks, options):
    victim = KILLED.index(options) % 2
    ranks += start(3, timeout=START_S, **options)
    for process in ranks:
        assert process.stdout.readline() == "started\n"
    ranks[victim].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    for kind, text, closed in survivors(ranks, victim):
        assert kind in allowed("PeerLostError", options), text
        assert f"rank {victim} is gone (pid {ranks[victim].pid} has ended)" in text
        assert closed
    assert time.monotonic() - killed < START_S / 3, "it took as long as a timeout"


@pytest.mark.parametrize(
    "options", [{"algorithm": "ring"}, {"kind": "async", "algorithm": "direct"}, {"kind": "messages"}]
)
def test_a_stopped_rank_is_named_within_the_timeout(ranks, options):
    ranks += start(3, **options)
    for process in ranks:
        assert process.stdout.readline() == "started\n"
    ranks[1].send_signal(signal.SIGSTOP)
    for kind, text, closed in survivors(ranks, 1):
        assert kind in allowed("CollectiveTimeoutError", options), text
        assert f"1 (pid {ranks[1].pid}, stopped)" in text and f"timed out after {TIMEOUT_S:g} s" in text
        assert closed
    ranks[1].send_signal(signal.SIGCONT)
    out, _ = ranks[1].communicate(timeout=20)
    assert "reports: " in json.loads(out.splitlines()[-1])[1], (
        "the stopped rank learns what became of the others"
    )


def test_abort_ends_all_ranks_and_names_who_called_it(ranks):
    ranks += start(3, kind="abort", timeout=60)
    begin = time.monotonic()
    for kind, text, closed in survivors(ranks, -1):
        assert kind == "ClosedError" and "rank 0 of 3 called abort()" in text and closed
    assert time.monotonic() - begin < 20, "they waited for a timeout"


@pytest.mark.parametrize("kind", ["barrier", "messages"])
def test_ctrl_c_ends_a_wait(ranks, kind):
    ranks += start(2, kind=kind, timeout=60)
    for process in ranks:
        assert process.stdout.readline() == "started\n"
    ranks[1].send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    while "S" not in Path(f"/proc/{ranks[0].pid}/stat").read_text().split(")")[-1].split()[:1]:
        assert time.monotonic() < begin + 10, "rank 0 never waits"
    ranks[0].send_signal(signal.SIGINT)
    _, stderr = ranks[0].communicate(timeout=5)
    assert "KeyboardInterrupt" in stderr and ranks[0].returncode != 0


def test_without_a_free_descriptor_the_others_seem_alive(ranks):
    script = """
    import resource, time
    import gpucomm
    comm = gpucomm.init(timeout=20)
    comm.barrier()
    if comm.rank == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    else:
        time.sleep(0.5)  # rank 0 looks after it meanwhile
    comm.barrier()
    """
    ranks += rank_processes.start(textwrap.dedent(script), [{}] * 2)
    for process in ranks:
        _, stderr = process.communicate(timeout=30)
        assert process.returncode == 0, stderr


def test_a_thread_that_waits_for_ever_does_not_spoil_the_end(ranks):
    script = """
    import threading, time
    import numpy as np
    import gpucomm
    from gpucomm import _core
    region = _core.Region(2)
    comms = [gpucomm.Communicator("local", rank, 2, region=region) for rank in range(2)]
    threading.Thread(target=lambda: comms[0].recv(np.zeros(1), 1), daemon=True).start()
    time.sleep(0.2)

    class Slow:
        def __del__(self):
            time.sleep(0.3)

    keep = Slow()  # so that the thread wakes while the interpreter ends
    """
    ranks += rank_processes.start(textwrap.dedent(script), [{}])
    _, stderr = ranks[0].communicate(timeout=30)
    assert (ranks[0].returncode, stderr) == (0, "")


def test_threads_that_make_calls_do_not_spoil_the_end(ranks):
    """One of them asks for the interpreter's lock just when that ends; so may what ends with it itself."""
    script = """
    import threading, time
    import numpy as np
    import gpucomm
    from gpucomm import _core

    def calls(drops):
        while True:
            comm = gpucomm.Communicator("local", 0, 1, region=_core.Region(1), timeout=5)
            for _ in range(10):
                comm.barrier()
                comm.all_reduce(np.ones(3), async_op=True).wait()
            drops or keep.append(comm)

    keep = []
    for number in range(4):
        threading.Thread(target=calls, args=(number % 2,), daemon=True).start()
    time.sleep(0.3)
    """
    ranks += rank_processes.start(textwrap.dedent(script), [{}] * 3)
    for process in ranks:
        _, stderr = process.communicate(timeout=30)
        assert (process.returncode, stderr) == (0, "")


def test_nothing_is_left_behind(ranks):
    before = rank_processes.litter()
    ranks += start(2)
    for process in ranks:
        assert process.stdout.readline() == "started\n"
    for process in ranks:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not rank_processes.left_since(before)


def test_of_a_fault_whose_finder_ended_while_it_told_it_the_rank_is_known():
    """Its words are not read, for they may be half there."""
    memory = _core.shm_create(2)
    first, second = (Communicator("shm", rank, 2, fd=memory, timeout=20) for rank in range(2))
    second._give_up("PeerLostError", "rank 7 is gone")
    with mmap.mmap(memory, mmap.PAGESIZE) as shared:
        state = shared.find(b"rank 7 is gone") - 8
        (told,) = struct.unpack_from("I", shared, state)
        struct.pack_into("I", shared, state, told - 1)  # as it is before the words are there
    os.close(memory)
    begin = time.monotonic()
    with pytest.raises(errors.PeerLostError, match="rank 1 reports: a fault, of which it could say no more"):
        first.barrier()
    assert time.monotonic() - begin < PROMPT_S
