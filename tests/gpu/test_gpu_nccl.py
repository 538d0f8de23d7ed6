"""NCCL itself: alone, and two processes on one GPU, which it allows from 2.30 on."""

import device_ranks
import numpy as np
import pytest
from conftest import pairs
from on_gpu import CudaKit, process_environment
from test_nccl import arrays
from test_nccl_calls import (  # noqa: F401
    NATIVE,
    test_blocks_of_sizes_that_only_two_ranks_know,
    test_bounded_errors,
    test_every_algorithm,
    test_lists_of_arrays,
    test_many_calls_that_nobody_waits_for,
    test_premultiplied_sums,
    test_the_largest_magnitude_of_all_ranks,
    test_the_same_bits_as_in_host_memory,
    test_work_waits_by_the_stream_and_synchronizes_by_the_host,
)

import gpucomm
from gpucomm import _core, nccl


@pytest.fixture(scope="module")
def library():
    if why := nccl.why_not():
        pytest.skip(why)
    return nccl.load()


@pytest.fixture(scope="module")
def gpu():
    return CudaKit()


@pytest.fixture
def alone(library, gpu):
    comm = _core.NcclCommunicator(library, gpu.device, library.unique_id(), 0, 1)
    yield comm
    comm.check()
    comm.close()


def given(gpu, collective):
    """What a rank alone gives; the same and what it gets, in arrays of the GPU."""
    x, out = arrays(collective, 0, 1, 1003, 0)
    there = gpu.array(x)
    return x, there, there if out is x else gpu.array(out)


@pytest.mark.parametrize("collective", NATIVE)
def test_native_collectives_alone(gpu, alone, collective):
    for op in ("sum", "min", "max", "prod", "mean"):
        x, there, out = given(gpu, collective)
        alone.native(collective, there, out, op=op)
        np.testing.assert_array_equal(gpu.host(out), x)


@pytest.mark.parametrize(("collective", "algorithm"), pairs())
def test_plans_alone(gpu, alone, collective, algorithm):
    x, there, out = given(gpu, collective)
    alone.run(collective, algorithm, there, out)
    np.testing.assert_array_equal(gpu.host(out), x)


@pytest.fixture(scope="module")
def world(library):
    env = process_environment(GPUCOMM_DEVICE_TRANSPORT="nccl", NCCL_MULTI_RANK_GPU_ENABLE="1")
    with gpucomm.local(2, env=env) as world:
        kind, text, _ = world.run(device_ranks.in_a_group, device_ranks.one_call)[0]
        if tuple(map(int, library.version.split("."))) < (2, 30):
            assert kind != "nothing", "an older NCCL than the documentation says takes two ranks on a GPU"
            pytest.skip(text)
        assert kind == "nothing", text
        yield world


def test_messages(world):
    assert world.run(device_ranks.messages, 50) == [[True] * 10] * world.ranks
