"""Kernels as they are launched, thread block by thread block, against the host's bits."""

from test_device_kernels import *  # noqa: F403
