"""Collectives in CUDA graphs: the tests of the host device once more."""

import pytest
from test_device_graphs import *  # noqa: F403

# Captures whose calls are refused hold nothing.
pytestmark = pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
