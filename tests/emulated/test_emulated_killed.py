"""A rank that is killed, of three processes on an emulated GPU, whose cudaFree waits for all work."""

import pytest
from on_emulated import process_environment
from rank_processes import end, start

pytestmark = pytest.mark.processes

SCRIPT = """
import gc, os
import numpy as np
import gpucomm
from device_ranks import own
comm = gpucomm.init(timeout=20)
kit = own(100)
x = kit.array(np.ones(1 << 18, np.float32))
try:
    for call in range(100_000):
        comm.all_reduce(x, op="max", algorithm="ring", async_op=True).wait()
        if call == 5:
            print("started", flush=True)
except gpucomm.errors.PeerLostError:
    print("told", flush=True)
left = comm.shrink()
stream = kit.device.make_stream()  # the default one may wait for what the lost rank has not done
for count in (1000, 1 << 16, 1 << 20):  # needs more memory each time, and gives the former back
    y = kit.array(np.full(count, left.rank, np.float32))
    left.all_reduce(y, codec="fixed:0.01", stream=stream, async_op=True).synchronize()
    assert (kit.host(y) == 1).all()
left.close(), comm.close()
del left, comm
gc.collect()
print("went on", flush=True)
os._exit(0)
"""


def test_those_that_are_left_give_memory_back_and_go_on(emulated_kit):
    """Some of what they have enqueued waits for the lost rank, for ever."""
    env = process_environment(GPUCOMM_DEVICE_TRANSPORT="arena", GPUCOMM_ARENA_MIB="1")
    ranks = start(SCRIPT, [env] * 3)
    try:
        for rank in ranks:
            assert rank.stdout.readline() == "started\n"
        ranks[1].kill()
        for rank in (ranks[0], ranks[2]):
            out, err = rank.communicate(timeout=40)
            assert out == "told\nwent on\n", err
    finally:
        end(ranks)
