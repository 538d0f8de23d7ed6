"""Processes on one GPU, which share its memory: the tests of processes with host devices once more."""

import device_ranks
import pytest
from on_gpu import process_environment
from test_device_processes import (  # noqa: F401
    test_an_element_that_the_codec_cannot_carry_is_told_by_the_work,
    test_blocks_of_sizes_that_only_two_ranks_know,
    test_bounded_errors,
    test_every_algorithm,
    test_faults,
    test_lists_of_arrays,
    test_many_calls_that_nobody_waits_for,
    test_messages,
    test_messages_larger_than_the_arena,
    test_messages_of_both_kinds_that_cross,
    test_no_graph_takes_them,
    test_pieces_that_fit_in_the_arena_among_others_that_do_not,
    test_premultiplied_sums,
    test_the_host_does_not_wait_for_the_device,
    test_the_same_bits_as_in_host_memory,
    test_work_waits_by_the_stream_and_synchronizes_by_the_host,
    world,
)

import gpucomm

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def told():
    """What the ranks' environment says."""
    env = process_environment(GPUCOMM_DEVICE_TRANSPORT="arena", GPUCOMM_ARENA_MIB="1")
    with gpucomm.local(2, env=env) as two:
        kind, text, _ = two.run(device_ranks.in_a_group, device_ranks.one_call)[0]
    if kind == "UnavailableError":  # as in some containers
        pytest.skip(text)
    assert kind == "nothing", text
    return env
