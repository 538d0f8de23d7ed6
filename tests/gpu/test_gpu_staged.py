"""Collectives through host memory, of threads on one GPU."""

from on_gpu import process_environment
from staged_threads import check


def test_every_algorithm_through_host_memory():
    check(process_environment(GPUCOMM_DEVICE_TRANSPORT="staged"), 3_000_000)
