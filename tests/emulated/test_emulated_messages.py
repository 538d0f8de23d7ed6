"""Messages on emulated GPUs: the tests of the host device once more."""

from test_device_messages import *  # noqa: F403
