"""A training that lives in a rank between calls, so that who called can show how far it is."""

from __future__ import annotations

from gpucomm.comm import Communicator
from gpucomm.reproduce.compressed_collectives.transformer import Settings, Training

_running: dict[int, Training] = {}  # by rank


def begin(comm: Communicator, settings: Settings) -> None:
    """Sets up a training on this rank."""
    _running[comm.rank] = Training(comm, settings)


def advance(comm: Communicator, steps: int) -> None:
    """Trains for some steps."""
    for _ in range(steps):
        _running[comm.rank].step()


def finish(comm: Communicator) -> dict[str, float]:
    """Ends the training; returns its figures on this rank, with the loss on text that was not learnt."""
    training = _running.pop(comm.rank)
    return training.report() | {"loss": training.held_out_loss()}
