"""Collectives and messages over NCCL, for which a library of the tests' own stands in, on an emulated GPU."""

import device_ranks
import nccl_library
import nccl_ranks
import pytest
from on_emulated import process_environment
from test_nccl_calls import (  # noqa: F401
    test_blocks_of_sizes_that_only_two_ranks_know,
    test_every_algorithm,
    test_lists_of_arrays,
    test_many_calls_that_nobody_waits_for,
    test_premultiplied_sums,
    test_the_largest_magnitude_of_all_ranks,
    test_the_same_bits_as_in_host_memory,
    test_work_waits_by_the_stream_and_synchronizes_by_the_host,
)

import gpucomm

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def world(emulated_kit, tmp_path_factory):
    env = nccl_library.environment(tmp_path_factory) | process_environment()
    with gpucomm.local(3, env=env) as world:
        world.run(nccl_ranks.connect)
        yield world


def test_messages(world):
    assert world.run(device_ranks.messages, 50) == [[True] * 10] * world.ranks
