"""The time over the number of segments: a U, and where its bottom is."""

from __future__ import annotations

import math
from statistics import median

from gpucomm.reproduce.claims import Outcome, Row
from gpucomm.reproduce.linear_pipelining.cells import MOST_RANKS, cells, pipeline
from gpucomm.reproduce.pictures import Curve, Picture
from gpucomm.reproduce.run import Call, Cell, Run

__all__ = ["segment_optimum"]


def segment_optimum(run: Run) -> Outcome:
    """How far the bottom of the measured U is from the model's m*, as a factor."""
    measured = [("broadcast", cell) for cell in cells(run, "switch", (54,), (54, 1074))]
    if not run.quick:
        measured += [("reduce", cell) for cell in cells(run, "switch", (), (54,))]
        measured += [("all_reduce", cell) for cell in cells(run, "chain", (), (54,))]
    rows: list[Row] = []
    curves: list[Curve] = []
    for collective, cell in measured:
        best = pipeline(collective, "linear_pipeline", MOST_RANKS, cell)
        calls = [best._replace(segments=m) for m in _around(best.segments, run.quick)]
        times = run.times(cell, MOST_RANKS, *calls)
        rows.append(_row(run, cell, best, calls, times))
        segments, unit = [call.segments for call in calls], cell.x * cell.alpha
        label, like = f"{collective}, {cell.kind}, x = {cell.x:g}", len(curves)
        models = [call.model_s(cell, MOST_RANKS) / unit for call in calls]
        ours = [median(some) / unit for some in times]
        under = collective == "broadcast" and ("reduce", cell) in measured  # which takes as long
        curves.append(Curve(label, segments, ours, like=like, wide=under))
        curves.append(Curve(f"the model; m* = {best.segments}", segments, models, model=True, like=like))
    title = "Linear pipeline of 8 ranks, emulated: time over the number of segments"
    picture = Picture(title, "segments m", "T / (n beta)", curves, log_x=True, log_y=True)
    return Outcome(rows, picture)


def _around(best: int, quick: bool) -> list[int]:
    """From best/8 to 8 best by factors of root 2 (quick: best/4 to 4 best by 2), rounded towards the best."""
    factors = [2.0**i for i in range(-2, 3)] if quick else [2 ** (i / 2) for i in range(-6, 7)]
    exact = [(f, best * f) for f in factors]
    return sorted({max(1, math.ceil(m - 1e-9) if f < 1 else math.floor(m + 1e-9)) for f, m in exact})


def _row(run: Run, cell: Cell, best: Call, calls: list[Call], times: list[list[float]]) -> Row:
    medians = [median(some) for some in times]
    bottom = calls[medians.index(min(medians))].segments
    text = f"{best.collective} on a {cell.kind}: bottom at m = {bottom}, the model's m* = {best.segments}"
    return Row(
        "segment_optimum",
        1.0,
        max(bottom / best.segments, best.segments / bottom),
        "m/m*, or m*/m",
        "emulated",
        "<=",
        2.0,
        run.setting(cell, MOST_RANKS),
        {f"m={call.segments}": some for call, some in zip(calls, times, strict=True)},
        run.note(cell, MOST_RANKS, text),
    )
