"""A training that lives in a rank between calls, so that who called can show how far it is."""

from __future__ import annotations

from digits.training import Result, Settings, Training
from gpucomm.comm import Communicator

_running: dict[Communicator, Training] = {}  # by communicator: ranks may be threads of one process


def begin(comm: Communicator, settings: Settings) -> int:
    """Sets up a training on this rank; returns how many steps it will have."""
    _running[comm] = Training(comm, settings)
    return _running[comm].steps_per_epoch * settings.epochs


def advance(comm: Communicator) -> int:
    """Trains for one epoch; returns how many steps that were."""
    return _running[comm].run_epoch()


def finish(comm: Communicator) -> Result:
    """Ends the training on this rank and returns its result."""
    return _running.pop(comm).finish()
