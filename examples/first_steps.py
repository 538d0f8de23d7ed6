"""A first collective: the mean over all ranks, and a broadcast by a pipeline in the background.

gpucomm run -n 4 examples/first_steps.py
"""

import numpy as np

import gpucomm

with gpucomm.init() as comm:
    x = np.full(1_000_000, comm.rank, np.float32)
    comm.all_reduce(x, op="mean")  # in place, by an algorithm chosen and learnt for you
    work = comm.broadcast(x, root=0, algorithm="linear_pipeline", async_op=True)
    work.wait(timeout=5)
    if comm.rank == 0:
        print(f"the mean over {comm.world} ranks is {x[0]}")
