"""Collectives for training over links slower than the processors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpucomm import errors
from gpucomm._core import Plan, algorithms, transports
from gpucomm._core import version as __version__
from gpucomm.comm import Communicator, Work
from gpucomm.non_member import NonMember

if TYPE_CHECKING:  # what _LATE imports at its first use
    from gpucomm import codecs as codecs
    from gpucomm import cost as cost
    from gpucomm import cuda as cuda
    from gpucomm import draw as draw
    from gpucomm import exchange as exchange
    from gpucomm import links as links
    from gpucomm import merge as merge
    from gpucomm import nccl as nccl
    from gpucomm import optim as optim
    from gpucomm import probe as probe
    from gpucomm.launch import init as init
    from gpucomm.launch import local as local
    from gpucomm.memory import empty as empty

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
    "draw": "draw",
    "empty": "memory",
    "exchange": "exchange",
    "init": "launch",
    "links": "links",
    "local": "launch",
    "merge": "merge",
    "nccl": "nccl",
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
