"""The contract of collectives on device arrays, on a GPU: the tests of the host device, collected here again."""

from test_device_collectives import *  # noqa: F403
