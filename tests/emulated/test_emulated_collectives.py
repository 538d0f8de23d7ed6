"""Collectives on emulated GPUs: the tests of the host device once more."""

from test_device_any_call import *  # noqa: F403
from test_device_collectives import *  # noqa: F403
from test_device_one_stream import *  # noqa: F403
from test_device_order import *  # noqa: F403
from test_device_refused import *  # noqa: F403
