"""Tables of what was measured, from the files under benchmarks/results/."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from generators.markdown import table

__all__ = ["collective_results", "training_results"]

RESULTS = Path(__file__).parent.parent.parent / "benchmarks" / "results"


def _size(nbytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def collective_results(name: str) -> str:
    """Returns a size a row: the time of Gloo, and of each algorithm its time and how often Gloo's it is."""
    rows = json.loads((RESULTS / f"{name}.json").read_text())
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows if row["library"] == "gpucomm"))
    times = {(row["bytes"], row["algorithm"]): row["time_us"] for row in rows}
    lines = []
    for nbytes in dict.fromkeys(row["bytes"] for row in rows):
        gloo = times[nbytes, "default"]
        ours = [times[nbytes, algorithm] for algorithm in algorithms]
        lines.append([_size(nbytes), f"{gloo:,.0f}", *(f"{t:,.1f} ({gloo / t:,.1f}x)" for t in ours)])
    return table(["message", "Gloo, us>", *(f"{a}, us>" for a in algorithms)], lines)


def training_results() -> str:
    """Returns the step times of DistributedOptimizer and of DDP with Gloo."""
    found = json.loads((RESULTS / "training_step.json").read_text())
    ours, ddp = (median(found["samples_s"][name]) * 1e3 for name in ("ours", "ddp"))
    row = [found["ranks"], found["merge"], f"{ours:.2f}", f"{ddp:.2f}", f"{ours / ddp:.2f}"]
    return table(["ranks>", "merge", "DistributedOptimizer, ms>", "DDP with Gloo, ms>", "ratio>"], [row])
