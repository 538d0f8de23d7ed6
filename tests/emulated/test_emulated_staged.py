"""Collectives through host memory, of threads on one emulated GPU."""

from on_emulated import process_environment
from staged_threads import check


def test_every_algorithm_through_host_memory(emulated_kit):
    check(process_environment(GPUCOMM_DEVICE_TRANSPORT="staged"), 300_000)
