"""all_reduce with max_rel_err on emulated GPUs: the tests of the host device once more."""

from test_device_bounded import *  # noqa: F403

# Of many calls or much data: this device is slow, and nothing in them is its own.
del test_later_reads_allocate_nothing, test_the_host_waits_no_longer_than_it_may  # noqa: F821
del test_calls_alike_have_few_specs  # noqa: F821
