"""Many calls of all kinds at once, on several communicators: none disturbs another."""

from __future__ import annotations

from pathlib import Path

import mixed_calls
import pytest
from on_emulated import SANITIZER
from ranks import run_ranks

import gpucomm

PATH = {"PYTHONPATH": str(Path(__file__).parent)}


@pytest.mark.parametrize("links", [{}, {"alpha": 2e-6, "beta": 2e-10}], ids=["as they are", "emulated"])
def test_between_threads(links):
    emulated = {"links": gpucomm._core.Links("switch", **links)} if links else {}
    calls = 25 if SANITIZER else 150
    assert run_ranks(3, lambda comm: mixed_calls.mixed(comm, 1, calls), **emulated) == [[]] * 3


@pytest.mark.processes
@pytest.mark.parametrize(("nodes", "cache"), [(None, "0"), ("2x2", ""), ("0,1,1,0", "0")])
def test_between_processes(nodes, cache):
    """Beside no cache at all everything is copied past it."""
    with gpucomm.local(4, env={**PATH, "GPUCOMM_LLC_MIB": cache}, nodes=nodes, timeout=20) as world:
        assert world.run(mixed_calls.mixed, 2, 150) == [[]] * 4
