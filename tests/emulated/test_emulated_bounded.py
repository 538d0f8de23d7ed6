"""On emulated GPUs: the tests of the host device once more."""

from test_device_bounded import *  # noqa: F403
