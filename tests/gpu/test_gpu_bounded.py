"""all_reduce with max_rel_err on a GPU: the tests of the host device once more."""

from test_device_bounded import *  # noqa: F403
