"""Kernels give the host's bits: the tests of the host device, collected here again for a GPU."""

from test_device_kernels import *  # noqa: F403
