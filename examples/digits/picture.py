"""Loss curves of all runs, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is needed

import matplotlib.pyplot as plt
import numpy as np

from digits.report import part_medians_s
from digits.training import PARTS, Result

_COLOURS = ("#4c78a8", "#f2b866", "#e45756", "#72b7b2", "#bab0ac")


def draw(path: Path, runs: Sequence[Result]) -> None:
    """Writes the picture.

    Args:
        path: a file that matplotlib can write.
        runs: one result per run, the reference first.
    """
    figure, (curves, bars) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    _draw_losses(curves, runs)
    _draw_steps(bars, runs)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_losses(axes: Any, runs: Sequence[Result]) -> None:
    # The curves lie on each other, as they should: each one thinner than the one below it.
    for place, run in enumerate(runs):
        width = 0.8 + 1.0 * (len(runs) - 1 - place)
        axes.plot(np.arange(1, len(run.losses) + 1), run.losses, linewidth=width, label=_name(run))
    axes.set(title="Loss of the global batch", xlabel="step", ylabel="cross entropy", yscale="log")
    axes.legend()


def _draw_steps(axes: Any, runs: Sequence[Result]) -> None:
    names = [_name(run) for run in runs]
    left = np.zeros(len(runs))
    for part, colour in zip(PARTS, _COLOURS, strict=True):
        widths = np.array([1e3 * part_medians_s(run)[part] for run in runs])
        axes.barh(names, widths, left=left, label=part, color=colour)
        left += widths
    axes.invert_yaxis()
    axes.set(title="Where a step's time goes (rank 0, medians)", xlabel="milliseconds")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)


def _name(run: Result) -> str:
    return f"{run.algorithm}, {run.world} rank{'s' if run.world > 1 else ''}"
