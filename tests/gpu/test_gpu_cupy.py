"""CuPy's arrays: a call is ordered on CuPy's current stream, before and behind it."""

import numpy as np
import pytest
import torch
from ranks import run_ranks

cupy = pytest.importorskip("cupy")


@pytest.mark.parametrize("codec", [None, "int8"])
def test_the_current_stream_of_cupy(codec):
    how = {"codec": codec, "algorithm": "coded_ring"} if codec else {}

    def body(comm):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            x = cupy.zeros(10_000, cupy.float32)
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
                torch.cuda._sleep(10**7)
            x += comm.rank + 1
            comm.all_reduce(x, **how)
            behind = x * 2
        stream.synchronize()
        return behind.get()

    for found in run_ranks(2, body):
        np.testing.assert_allclose(found, 6, rtol=0.02 if codec else 0)


def test_new_results_are_cupys():
    def body(comm):
        gathered = comm.all_gather(cupy.full(2, comm.rank + 1.0, cupy.float32))
        return type(gathered), gathered.get().tolist()

    assert run_ranks(2, body) == [(cupy.ndarray, [1.0, 1.0, 2.0, 2.0])] * 2


def test_results_of_another_array_and_its_dtype():
    def body(comm):
        x = cupy.arange(6, dtype=cupy.int64).reshape(2, 3) * (comm.rank + 1)
        out = cupy.empty_like(x)
        comm.all_reduce(x, out=out)
        return out.get().tolist()

    assert run_ranks(2, body) == [[[0, 3, 6], [9, 12, 15]]] * 2
