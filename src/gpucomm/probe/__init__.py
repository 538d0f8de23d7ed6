"""Measuring the links between the ranks, pair by pair, for algorithm="auto" and for people."""

from gpucomm.probe.figures import Figures
from gpucomm.probe.survey import measure

__all__ = ["Figures", "measure"]
