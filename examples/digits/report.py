"""What was measured, as a table and as rows for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from digits.checks import weight_difference
from digits.training import PARTS, Result


def part_medians_s(run: Result) -> dict[str, float]:
    """Returns the median seconds that each part of a step takes."""
    return {part: float(np.median(run.parts_s[part])) for part in PARTS}


def row(run: Result, reference: Result | None) -> dict[str, Any]:
    """Returns a run in figures; the difference is None where there is no reference."""
    communicating = np.sum([run.parts_s[part] for part in PARTS if "gradients" in part])
    return {
        "algorithm": run.algorithm,
        "ranks": run.world,
        "steps": len(run.losses),
        "accuracy": run.accuracy,
        "step_ms": 1e3 * float(np.median(run.step_s)),
        "communicating": float(communicating / np.sum(run.step_s)),
        "bytes_per_step": run.bytes_per_step,
        "weight_difference": None if reference is None else weight_difference(run, reference),
        "identical_every_step": run.unlike < 0,
    }


def print_table(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """Prints the rows."""
    table = Table(box=SIMPLE, padding=0, pad_edge=False, caption=_CAPTION)
    table.add_column("algorithm", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for figures in rows:
        difference = figures["weight_difference"]
        table.add_row(
            figures["algorithm"],
            str(figures["ranks"]),
            f"{figures['accuracy']:.2%}",
            f"{figures['step_ms']:.2f}",
            f"{figures['communicating']:.0%}",
            f"{figures['bytes_per_step'] / 1024:,.0f}",
            "-" if difference is None else f"{difference:.1e}",
        )
    console.print(table)


_HEADINGS = ("ranks", "accuracy", "step, ms", "comm.", "KiB moved", "off by")
_CAPTION = (
    "accuracy: on the test images; step: median of rank 0; comm.: its share spent copying gradients and "
    "waiting for them, which includes waiting for ranks that still compute; moved: per step, by all ranks "
    "together; off by: the largest difference of a weight from the one process's"
)
