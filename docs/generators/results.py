"""Tables of what was measured, from the files under benchmarks/results/."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from generators.markdown import table

__all__ = ["auto_results", "collective_results", "peer_results", "training_results"]

RESULTS = Path(__file__).parent.parent.parent / "benchmarks" / "results"


def _size(nbytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def auto_results() -> str:
    """Returns how far "auto" was from the best fixed choice, by links and ranks."""
    rows = json.loads((RESULTS / "auto.json").read_text())
    groups = dict.fromkeys((row["links"], row["ranks"]) for row in rows)
    lines = []
    for links, ranks in groups:
        ratios = sorted(row["ratio"] for row in rows if (row["links"], row["ranks"]) == (links, ranks))
        p95 = ratios[-(-95 * len(ratios) // 100) - 1]
        figures = (f"{ratio:.2f}" for ratio in (median(ratios), p95, ratios[-1]))
        lines.append([f"`{links}`", str(ranks), str(len(ratios)), *figures])
    return table(["links", "ranks>", "cells>", "median>", "95th percentile>", "largest>"], lines)


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


def peer_results(name: str) -> str:
    """Returns a size a row: our arrays, private and shared, and the fastest MPI, by default and at best."""
    rows = [row for row in json.loads((RESULTS / f"{name}.json").read_text()) if row["library"] != "gloo"]
    lines = []
    for nbytes in dict.fromkeys(row["bytes"] for row in rows):
        here = [row for row in rows if row["bytes"] == nbytes]
        private, shared = (
            min(row["time_us"] for row in here if row["library"] == library)
            for library in ("gpucomm", "gpucomm.empty")
        )
        peers = [row for row in here if not row["library"].startswith("gpucomm")]
        line = [_size(nbytes), f"{private:,.1f}", f"{shared:,.1f}"]
        for some in ([row for row in peers if row["algorithm"] == "default"], peers):
            best = min(some, key=lambda row: row["time_us"])
            variant = "" if best["algorithm"] == "default" else f", {best['algorithm']}"
            ratios = f"{best['time_us'] / private:.2f}x, {best['time_us'] / shared:.2f}x"
            line += [f"{best['time_us']:,.1f} ({best['library']}{variant})", ratios]
        lines.append(line)
    header = ["message", "private, us>", "gpucomm.empty, us>", "best MPI as it comes, us", "ratios"]
    return table([*header, "best MPI in any variant, us", "ratios"], lines)


def training_results() -> str:
    """Returns the step times of DistributedOptimizer and of DDP with Gloo."""
    found = json.loads((RESULTS / "training_step.json").read_text())
    ours, ddp = (median(found["samples_s"][name]) * 1e3 for name in ("ours", "ddp"))
    row = [found["ranks"], found["merge"], f"{ours:.2f}", f"{ddp:.2f}", f"{ours / ddp:.2f}"]
    return table(["ranks>", "merge", "DistributedOptimizer, ms>", "DDP with Gloo, ms>", "ratio>"], [row])
