"""A rank that is killed, of three processes on one GPU: the others are told soon, by each way of arrays."""

import pytest
from on_gpu import process_environment
from rank_processes import kill_one, start

from gpucomm import nccl

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

SCRIPT = """
import numpy as np
import gpucomm
from device_ranks import own
from rank_processes import keep_calling
comm = gpucomm.init(timeout=20)
x = own(100).array(np.ones({count}, np.float32))
keep_calling(comm, lambda: (comm.all_reduce(x, op="max", algorithm="{algorithm}", async_op=True), x), {wait})
"""


@pytest.mark.parametrize(("algorithm", "count", "wait"), [("ring", 1 << 20, True), ("direct", 3, False)])
@pytest.mark.parametrize("way", ["arena", "staged", "nccl"])
def test_a_killed_rank_is_named(ranks, way, algorithm, count, wait):
    if way == "nccl" and (nccl.why_not() or tuple(map(int, nccl.load().version.split("."))) < (2, 30)):
        pytest.skip("this NCCL takes one rank on a GPU")
    env = process_environment(GPUCOMM_DEVICE_TRANSPORT=way, NCCL_MULTI_RANK_GPU_ENABLE="1")
    ranks += start(SCRIPT.format(algorithm=algorithm, count=count, wait=wait), [env] * 3)
    kill_one(ranks)
