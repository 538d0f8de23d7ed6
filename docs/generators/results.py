"""Tables of what was measured, from the files under benchmarks/results/."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from generators.markdown import table
from gpucomm.bench.metrics import MEMORIES, p95
from gpucomm.units import format_size

__all__ = ["auto_coded_results", "auto_results", "peer_results", "process_group_results", "training_results"]

_MPIS = ("openmpi", "mpich")
# What stands beside our times, and which rows it is the least of.
_OTHERS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "Gloo": lambda row: row["library"] == "gloo",
    "best MPI as it comes": lambda row: row["library"] in _MPIS and row["algorithm"] == "default",
    "best MPI in any variant": lambda row: row["library"] in _MPIS,
    "limit": lambda row: row["library"] == "limit",
}
RESULTS = Path(__file__).parent.parent.parent / "benchmarks" / "results"


def auto_results() -> str:
    """Returns how far "auto" was from the best fixed choice, by links and ranks."""
    return _ratios("auto.json", {"links": "`{}`", "ranks>": "{}"})


def auto_coded_results() -> str:
    """Returns how far "auto", with a codec that it may take or leave, was from the best dense choice."""
    return _ratios("auto_coded.json", {"codec": "`{}`", "links": "`{}`", "ranks>": "{}"})


def _ratios(file: str, by: Mapping[str, str]) -> str:
    rows = json.loads((RESULTS / file).read_text())
    keys = {head.rstrip(">"): text for head, text in by.items()}
    lines = []
    for group in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        ratios = [row["ratio"] for row in rows if tuple(row[key] for key in keys) == group]
        figures = (f"{ratio:.2f}" for ratio in (median(ratios), p95(ratios), max(ratios)))
        names = (text.format(value) for text, value in zip(keys.values(), group, strict=True))
        lines.append([*names, str(len(ratios)), *figures])
    return table([*by, "cells>", "median>", "95th percentile>", "largest>"], lines)


def peer_results(name: str) -> str:
    """Returns a size a row: our arrays in each kind of memory, then Gloo, the fastest MPI and the limit."""
    rows = json.loads((RESULTS / f"{name}.json").read_text())
    ours = [one for one in MEMORIES.values() if any(row["library"] == one for row in rows)]
    others = [(head, chosen) for head, chosen in _OTHERS.items() if any(map(chosen, rows))]
    lines = []
    for nbytes in dict.fromkeys(row["bytes"] for row in rows):
        here = [row for row in rows if row["bytes"] == nbytes]
        times = [min(row["time_us"] for row in here if row["library"] == one) for one in ours]
        line = [format_size(nbytes), *(f"{time:,.1f}" for time in times)]
        for _, chosen in others:
            line += _beside(list(filter(chosen, here)), times)
        lines.append(line)
    kinds = dict(zip(MEMORIES.values(), ("private", "on huge pages", "gpucomm.empty"), strict=True))
    header = ["message", *(f"{kinds[one]}, us>" for one in ours)]
    for head, _ in others:
        header += [f"{head}, us", "ratio"]
    return table(header, lines)


def _beside(peers: list[dict[str, Any]], times: list[float]) -> list[str]:
    best = min(peers, key=lambda row: row["time_us"])
    library, variant = best["library"] * (best["library"] in _MPIS), best["algorithm"]
    which = ", ".join(word for word in (library, variant * (variant != "default")) if word)
    of = f" ({which})" if which else ""
    return [f"{best['time_us']:,.1f}{of}", ", ".join(f"{best['time_us'] / time:.2f}x" for time in times)]


def process_group_results() -> str:
    """Returns a size a row: the medians of torch.distributed's all_reduce over both backends."""
    found = json.loads((RESULTS / "process_group.json").read_text())
    lines = []
    for nbytes, taken in found["samples_s"].items():
        ours, gloo = (median(taken[name]) * 1e6 for name in ("gpucomm", "gloo"))
        lines.append([format_size(int(nbytes)), f"{ours:,.1f}", f"{gloo:,.1f}", f"{gloo / ours:.1f}"])
    return table(["message", "gpucomm, us>", "Gloo, us>", "ratio>"], lines)


def training_results() -> str:
    """Returns the step times of DistributedOptimizer and of DDP with Gloo."""
    found = json.loads((RESULTS / "training_step.json").read_text())
    ours, ddp = (median(found["samples_s"][name]) * 1e3 for name in ("ours", "ddp"))
    row = [found["ranks"], found["merge"], f"{ours:.2f}", f"{ddp:.2f}", f"{ours / ddp:.2f}"]
    return table(["ranks>", "merge", "DistributedOptimizer, ms>", "DDP with Gloo, ms>", "ratio>"], [row])
