"""What is made once, however many processes of pytest ask for it: each runs a part of a file's tests."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

__all__ = ["once"]

T = TypeVar("T")


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], T]) -> T:
    """What `make` gives of an empty folder, which stays as long as the tests run; others are given a copy."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    made = shared / f"{name} made"
    with open(shared / f"{name} lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder = factory.mktemp(name)
            made.write_bytes(pickle.dumps(make(folder)))
    return pickle.loads(made.read_bytes())
