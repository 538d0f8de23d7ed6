"""A call for which a rank has no memory fails on every rank, soon, with a sentence."""

from __future__ import annotations

import json

import pytest
import rank_processes
from ranks import PROMPT_S

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
