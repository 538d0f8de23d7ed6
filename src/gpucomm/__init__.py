"""Collectives for training over links slower than the processors."""

from __future__ import annotations

from typing import Any

from gpucomm import errors
from gpucomm._core import Plan, algorithms, transports
from gpucomm._core import version as __version__
from gpucomm.comm import Communicator, Work
from gpucomm.non_member import NonMember

__all__ = [
    "Communicator",
    "NonMember",
    "Plan",
    "Work",
    "__version__",
    "algorithms",
    "codecs",
    "empty",
    "errors",
    "init",
    "local",
    "transports",
]

_LATE = {
    "codecs": "codecs",
    "cost": "cost",
    "cuda": "cuda",
    "empty": "memory",
    "exchange": "exchange",
    "init": "launch",
    "links": "links",
    "local": "launch",
    "merge": "merge",
    "optim": "optim",
    "probe": "probe",
}  # name -> the part that holds it, or is it


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'gpucomm' has no attribute '{name}'")
    import importlib

    part = importlib.import_module(f"gpucomm.{_LATE[name]}")
    globals()[name] = value = part if name == _LATE[name] else getattr(part, name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_LATE})
