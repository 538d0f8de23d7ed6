"""What one look of `gpucomm doctor` finds, and how it asks."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import signal
import subprocess
from dataclasses import dataclass

from gpucomm.launch.fresh import fresh_python

__all__ = ["Finding", "ask", "find", "last_line"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: what was looked at.
        on: whether it can be used.
        why: what was found, or what is missing and how to get it.
    """

    name: str
    on: bool
    why: str


def ask(code: str) -> subprocess.CompletedProcess[str]:
    """What another process says, which may load or open what this one must not."""
    return subprocess.run(fresh_python(code), capture_output=True, text=True, timeout=60)


def last_line(said: str, code: int) -> str:
    """Of what a process has said; where it said nothing, how it ended."""
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    return (said.strip().splitlines() or [f"the process that asked said nothing: {how}"])[-1]


def find(module: str) -> importlib.machinery.ModuleSpec | None:
    """An installed module; None: there is none."""
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
