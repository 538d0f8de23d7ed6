"""The collective-level algorithms beside the dense ones and beside compressing at every hop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from gpucomm.reproduce.claims import Outcome, Row
from gpucomm.reproduce.compressed_collectives import between_hosts
from gpucomm.reproduce.compressed_collectives.measuring import PER_HOP, TWO_SHOT, Measured, Way, all_measured
from gpucomm.reproduce.compressed_collectives.points import HEADLINE_C
from gpucomm.reproduce.pictures import Curve, Picture
from gpucomm.reproduce.run import Run, ratio

__all__ = ["ag_vs_dense", "ag_vs_per_hop", "rs_vs_dense", "rs_vs_per_hop"]

_OF_MODEL = 0.9


class _Comparison(NamedTuple):
    """What a claim compares; by how many percent a time is below the other's: the paper's, and the goal."""

    claim: str
    collective: str
    dense: bool
    paper: float
    goal: float

    def other(self, found: Measured) -> Way:
        return found.dense if self.dense else PER_HOP


_AG_DENSE = _Comparison("ag_vs_dense", "all_gather", True, 83.6, 83.6)
_AG_PER_HOP = _Comparison("ag_vs_per_hop", "all_gather", False, 30.3, 30.3)
_RS_DENSE = _Comparison("rs_vs_dense", "reduce_scatter", True, 88.1, 85.0)
_RS_PER_HOP = _Comparison("rs_vs_per_hop", "reduce_scatter", False, 40.6, 40.6)


def _outcome(what: _Comparison, run: Run) -> Outcome:
    found = all_measured(run, what.collective)
    rows = [_headline_row(run, what, some) for some in found if some.point.headline]
    rows += [_model_row(run, what, some) for some in found]
    if what.dense:
        rows += [_two_shot_row(run, what, some) for some in found if some.point.headline]
    if hosts := between_hosts.measured(run, what.collective):
        rows.append(_model_row(run, what, hosts))
    return Outcome(rows, _picture(what, found))


ag_vs_dense, ag_vs_per_hop = partial(_outcome, _AG_DENSE), partial(_outcome, _AG_PER_HOP)
rs_vs_dense, rs_vs_per_hop = partial(_outcome, _RS_DENSE), partial(_outcome, _RS_PER_HOP)


def _headline_row(run: Run, what: _Comparison, found: Measured) -> Row:
    other = what.other(found)
    below = 100 * (1 - ratio(found.ways[found.ours], found.ways[other]))
    limit = 100 * (1 - found.point.coded_bytes / found.point.part_bytes)
    text = f"{found.ours} against {other}"
    if what.dense:
        text += f"; fewer bytes alone: {limit:.1f} %"
    low, high = HEADLINE_C
    if not low <= found.c <= high:
        text += f"; c is outside of {low:g} to {high:g}, for which the goal is"
    than = "dense" if what.dense else "per hop"
    figures = (what.paper, below, f"% less time than {than}", "emulated", ">=", what.goal)
    return Row(what.claim, *figures, *_under(run, found, (found.ours, other), text))


def _model_row(run: Run, what: _Comparison, found: Measured) -> Row:
    other = what.other(found)
    model = found.model_s(other) / found.model_s(found.ours)
    text = f"{found.point.codec}; {found.ours} against {other}; the model: {model:.3f}"
    if form := _closed_form(what, found):
        text += f", the paper's form: {form:.3f}"
    text += f"; where all ranks code at once, c = {found.c_at_once:.2f}"
    speedup = ratio(found.ways[other], found.ways[found.ours])
    unit = f"T({'dense' if what.dense else 'per hop'})/T(coded)"
    ways = [way for way in found.ways if way in (found.ours, other) or way.coded is not what.dense]
    how = "measured" if found.hosts else "emulated"
    figures = (None, speedup, unit, how, ">=", _OF_MODEL * model)
    return Row(what.claim, *figures, *_under(run, found, ways, text))


def _two_shot_row(run: Run, what: _Comparison, found: Measured) -> Row:
    """Ours, not the paper's: coded messages that go straight to where they are needed."""
    other = found.dense
    speedup = ratio(found.ways[other], found.ways[TWO_SHOT])
    text = f"{TWO_SHOT} against {other}: every message goes straight to its rank"
    figures = (None, speedup, "T(dense)/T(two_shot)", "emulated", ">=", None)
    return Row(what.claim, *figures, *_under(run, found, (TWO_SHOT, other), text))


def _under(
    run: Run, found: Measured, ways: Sequence[Way], text: str
) -> tuple[dict[str, Any], dict[str, list[float]], str]:
    """Setting, samples and note of a row."""
    point = found.point
    repeats = len(found.ways[found.ours])
    setting = run.setting(point.cell, point.ranks, codec_to_wire=found.c, repeats=repeats)
    if found.hosts:
        setting["links"] = found.hosts
        text = f"between hosts; {text}"
    samples = {str(way): found.ways[way] for way in {**dict.fromkeys(ways), PER_HOP: None}}
    samples["encode and decode a part, all ranks at once"] = found.coding
    return setting, samples, text if found.hosts else run.note(point.cell, point.ranks, text)


def _closed_form(what: _Comparison, found: Measured) -> float | None:
    """How many times as long coding per hop takes, where encoding and decoding take as long as each other.

    (N-1)(1+c)/(N-1+c) of all-gather; of reduce-scatter in k segments, where encoding, sending and decoding
    are under each other, (N-1)(1+c) over (N-1+2/k) times the longest of the three.
    """
    if what.dense:
        return None
    hops, c = found.point.ranks - 1, found.c
    if what.collective == "all_gather":
        return hops * (1 + c) / (hops + c)
    return hops * (1 + c) / ((hops + 2 / found.ours.segments) * max(1.0, c / 2))


def _picture(what: _Comparison, found: Sequence[Measured]) -> Picture:
    """The speed-up over c: measured, and what the model says there."""
    curves = []
    for ranks in sorted({some.point.ranks for some in found}):
        mine = sorted((some for some in found if some.point.ranks == ranks), key=lambda some: some.c)
        ours = [ratio(some.ways[what.other(some)], some.ways[some.ours]) for some in mine]
        models = [some.model_s(what.other(some)) / some.model_s(some.ours) for some in mine]
        cs = [some.c for some in mine]
        curves.append(Curve(f"emulated, {ranks} ranks", cs, ours))
        curves.append(Curve(f"the model, {ranks} ranks", cs, models, model=True, like=len(curves) - 1))
    than = "the fastest dense" if what.dense else "coding at every hop"
    name = what.collective.replace("_", "-").capitalize()
    title = f"{name} with coded messages: time of {than} over its time"
    unit = f"T({'dense' if what.dense else 'per hop'}) / T(coded)"
    return Picture(title, "c: codec over wire, a hop", unit, curves, log_x=True)
