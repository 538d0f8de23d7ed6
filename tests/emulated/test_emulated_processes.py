"""Processes on one emulated GPU: the tests of processes with host devices once more."""

import pytest
from on_emulated import process_environment
from test_device_processes import (  # noqa: F401
    test_an_element_that_the_codec_cannot_carry_is_told_by_the_work,
    test_blocks_of_sizes_that_only_two_ranks_know,
    test_every_algorithm,
    test_faults,
    test_groups_that_end_leave_no_memory,
    test_lists_of_arrays,
    test_messages,
    test_messages_larger_than_the_arena,
    test_messages_of_both_kinds_that_cross,
    test_no_graph_takes_them,
    test_premultiplied_sums,
    test_the_same_bits_as_in_host_memory,
    test_work_waits_by_the_stream_and_synchronizes_by_the_host,
    world,
)

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def told(emulated_kit):
    """What the ranks' environment says."""
    return process_environment(GPUCOMM_DEVICE_TRANSPORT="arena", GPUCOMM_ARENA_MIB="1")
