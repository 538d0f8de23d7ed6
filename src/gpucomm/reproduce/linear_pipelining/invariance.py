"""Whether a pipeline's time depends on the number of ranks, and a tree's grows as its logarithm."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from gpucomm import cost
from gpucomm.reproduce.claims import Outcome, Row
from gpucomm.reproduce.linear_pipelining import between_hosts
from gpucomm.reproduce.linear_pipelining.cells import MOST_RANKS, cells, pipeline
from gpucomm.reproduce.pictures import Curve, Picture
from gpucomm.reproduce.run import Call, Cell, Run, ratio

__all__ = ["lp_invariant", "mst_log_p"]

_COLLECTIVES = ("broadcast", "reduce")
_FROM_X = 1200  # where p - 2 more steps of the pipeline are at most 15 % of its time at p = 8
_LONG_X = 6000  # measured with fewer numbers of ranks, for a call takes seconds
_FAR = (2, 8, 64, 512, 2048)
_Samples = dict[int, list[float]]  # by number of ranks


def lp_invariant(run: Run) -> Outcome:
    """Time at p = 8 over that at p = 2; where x is small, the distance from the model."""
    rows: list[Row] = []
    curves: list[Curve] = []
    measured = cells(run, "switch", (54, 2000), (10, 54, 200, 1200, 2400, 6000))
    if not run.quick:
        measured += cells(run, "chain", (), (200, 2400))
    for cell in measured:
        worlds = _worlds(run, cell)
        calls = {p: [pipeline(name, "linear_pipeline", p, cell) for name in _COLLECTIVES] for p in worlds}
        for of, times in zip(_by_call(calls), _times(run, cell, calls), strict=True):
            rows.append(_lp_row(run, cell, of, times))
            if cell.kind == "switch" and of[MOST_RANKS].collective == "broadcast":
                curves += _curves(f"x = {cell.x:g}", times, of, cell, len(curves))
    title = "Broadcast by a linear pipeline, emulated switch: time over that at p = 2"
    rows += between_hosts.pipeline_rows(run)
    return Outcome([*rows, *_far_pipelines(run)], Picture(title, "ranks p", "T(p) / T(2)", curves))


def _worlds(run: Run, cell: Cell) -> tuple[int, ...]:
    return run.worlds() if cell.x < _LONG_X else (2, 4, MOST_RANKS)


def _by_call(calls: dict[int, list[Call]]) -> list[dict[int, Call]]:
    return [{p: some[i] for p, some in calls.items()} for i in range(len(_COLLECTIVES))]


def _times(run: Run, cell: Cell, calls: dict[int, list[Call]]) -> list[_Samples]:
    """Of each call its times by number of ranks; those of one number are measured together."""
    found = {p: run.times(cell, p, *some) for p, some in calls.items()}
    return [{p: times[i] for p, times in found.items()} for i in range(len(_COLLECTIVES))]


def _lp_row(run: Run, cell: Cell, calls: dict[int, Call], times: _Samples) -> Row:
    where = f"{calls[MOST_RANKS].collective} on a {cell.kind}"
    models = {p: call.model_s(cell, p) for p, call in calls.items()}
    fixed = (run.setting(cell, MOST_RANKS), _named(times))
    if cell.x >= _FROM_X:
        note = run.note(cell, MOST_RANKS, f"{where}; the model: {models[MOST_RANKS] / models[2]:.3f}")
        growth = ratio(times[MOST_RANKS], times[2])
        return Row("lp_invariant", 1.0, growth, "T(8)/T(2)", "emulated", "<=", 1.15, *fixed, note)
    note = run.note(cell, MOST_RANKS, f"{where}; the largest of p = {_listed(times)}")
    off = max(abs(median(times[p]) / models[p] - 1) for p in times)
    return Row("lp_invariant", None, off, "off the model", "emulated", "<=", 0.10, *fixed, note)


def mst_log_p(run: Run) -> Outcome:
    """The growth from p = 2 to p = 8, and how far it is from log p anywhere between."""
    rows: list[Row] = []
    curves: list[Curve] = []
    for cell in cells(run, "switch", (54,), (10, 54, 1074, 6000)):
        calls = {p: [Call(name, "binomial_tree") for name in _COLLECTIVES] for p in _worlds(run, cell)}
        for of, times in zip(_by_call(calls), _times(run, cell, calls), strict=True):
            rows += _mst_rows(run, cell, of, times)
            if of[MOST_RANKS].collective == "broadcast":
                curves += _curves(f"x = {cell.x:g}", times, of, cell, len(curves))
    title = "Broadcast over a minimum spanning tree on an emulated switch"
    rows += between_hosts.tree_rows(run)
    return Outcome([*rows, _far_tree(run)], Picture(title, "ranks p", "T(p) / T(2)", curves))


def _mst_rows(run: Run, cell: Cell, calls: dict[int, Call], times: _Samples) -> list[Row]:
    note = run.note(cell, MOST_RANKS, f"{calls[MOST_RANKS].collective} on a switch; log2 8 = 3")
    fixed = (run.setting(cell, MOST_RANKS), _named(times), note)
    growth = ratio(times[MOST_RANKS], times[2])
    off = max(abs(ratio(times[p], times[2]) / _depth(p) - 1) for p in times)
    return [
        Row("mst_log_p", 3.0, growth, "T(8)/T(2)", "emulated", ">=", 2.7, *fixed),
        Row("mst_log_p", None, off, "off log2 p", "emulated", "<=", 0.10, *fixed),
    ]


def _depth(p: int) -> int:
    return math.ceil(math.log2(p))


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _named(times: _Samples) -> dict[str, list[float]]:
    return {f"p={p}": some for p, some in times.items()}


def _curves(label: str, times: _Samples, calls: dict[int, Call], cell: Cell, like: int) -> list[Curve]:
    worlds = list(times)
    models = [calls[p].model_s(cell, p) for p in worlds]
    ours = [ratio(times[p], times[2]) for p in worlds]
    return [
        Curve(label, worlds, ours, like=like),
        Curve(f"{label}, the model", worlds, [t / models[0] for t in models], model=True, like=like),
    ]


def _far_pipelines(run: Run) -> list[Row]:
    """On to 2048 ranks: the simulator's distance from the closed form, and what is left of the invariance."""
    run.tell("simulating pipelines of up to 2048 ranks")
    (cell,) = cells(run, "switch", (1200,), (1200,))
    model = cell.model
    rows = []
    for collective in _COLLECTIVES:
        points = cost.simulate(
            collective, "linear_pipeline", worlds=_FAR, nbytes=cell.nbytes, links=model, segments=128
        )
        forms = [cost.linear_pipeline(p, 128, cell.nbytes, model) for p in _FAR]
        off = max(abs(point.seconds / form - 1) for point, form in zip(points, forms, strict=True))
        text = f"{collective}, 128 segments, p = {_listed(_FAR)}; the form (p-2+m)(alpha + n/m beta)"
        samples = {f"p={point.world}": [point.seconds] for point in points}
        fixed = (run.setting(cell, _FAR[-1], repeats=1), samples, text)
        rows.append(Row("lp_invariant", None, off, "off the closed form", "simulated", "<=", 1e-9, *fixed))
    rows.append(_far_row(run, cell, _FAR[-1], None, "the fill, p - 2 segments, is no longer short"))
    # x = n beta / alpha must grow with p - 2, as the fill does.
    longer = cell._replace(x=cell.x * (256 - 2) / (MOST_RANKS - 2))
    return [*rows, _far_row(run, longer, 256, 1.15, "x grown with p - 2, as the fill grows")]


def _far_row(run: Run, cell: Cell, p: int, goal: float | None, note: str) -> Row:
    two, many = cost.simulate(
        "broadcast", "linear_pipeline", worlds=(2, p), nbytes=cell.nbytes, links=cell.model
    )
    samples = {"p=2": [two.seconds], f"p={p}": [many.seconds]}
    figures = (1.0, many.seconds / two.seconds, f"T({p})/T(2)", "simulated", "<=", goal)
    text = f"broadcast, {many.segments} segments; {note}"
    return Row("lp_invariant", *figures, run.setting(cell, p, repeats=1), samples, text)


def _far_tree(run: Run) -> Row:
    (cell,) = cells(run, "switch", (1200,), (1200,))
    points = cost.simulate("broadcast", "binomial_tree", worlds=_FAR, nbytes=cell.nbytes, links=cell.model)
    off = max(abs(point.seconds / points[0].seconds / _depth(point.world) - 1) for point in points)
    samples = {f"p={point.world}": [point.seconds] for point in points}
    text = f"broadcast, p = {_listed(_FAR)}; log2 2048 = 11"
    fixed = (run.setting(cell, _FAR[-1], repeats=1), samples, text)
    return Row("mst_log_p", None, off, "off log2 p", "simulated", "<=", 1e-9, *fixed)
