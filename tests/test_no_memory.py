"""A call for which a rank has no memory fails on every rank, soon, with a sentence."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import rank_processes
from ranks import PROMPT_S

import gpucomm
from gpucomm.errors import Error

pytestmark = pytest.mark.processes

SCRIPT = """
import json, resource, sys, time
import numpy as np
import gpucomm
comm = gpucomm.init(timeout=20)
x = np.ones(1 << 23, np.float32)
comm.barrier(async_op=True).wait()  # starts the thread
if comm.rank == 0:
    pages = int(open("/proc/self/statm").read().split()[5])
    most = pages * resource.getpagesize() + (256 << 10)
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))
began = time.monotonic()
try:
    {call}
    said = ["passed", ""]
except Exception as error:
    took, closed = time.monotonic() - began, comm.closed
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
    said = [type(error).__name__, str(error), closed, took]
print(json.dumps(said), flush=True)
sys.stdin.readline()  # nobody hears of it by an end of the process
"""


@pytest.mark.parametrize(
    "call",
    [
        'comm.all_reduce(x, algorithm="ring", segments=4096)',
        'comm.all_reduce(x, algorithm="ring", segments=4096, async_op=True).wait()',
    ],
)
def test_all_ranks_are_told(ranks, call):
    ranks += rank_processes.start(SCRIPT.format(call=call), [{}] * 2)
    said = [json.loads(process.stdout.readline()) for process in ranks]
    for rank, (kind, text, closed, took) in enumerate(said):
        assert kind == "UnavailableError" and closed, text
        assert text.startswith("rank 0 reports: " * rank + "no memory for what a call needs"), text
        assert took < PROMPT_S


def limited(comm):
    """What a rank says that cannot take what another one has."""
    comm.gather_objects(0)
    if comm.rank == 1:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (60 << 20), resource.RLIM_INFINITY))
    try:
        comm.gather_objects(bytes(100 << 20) if comm.rank == 0 else b"")
    except Error as error:
        return type(error).__name__, str(error)


def test_what_is_gathered_has_no_room():
    with gpucomm.local(2) as world:
        first, second = world.run(limited)
    assert second[0] == "UnavailableError", second
    assert second[1].startswith("there is no memory for objects of ") and second[1].endswith("(rank 1 of 2)")
    assert first[0] == "MismatchError" and "rank 1" in first[1], first
