"""Collectives in graphs on emulated GPUs: the tests of the host device once more."""

from test_device_graphs import *  # noqa: F403
