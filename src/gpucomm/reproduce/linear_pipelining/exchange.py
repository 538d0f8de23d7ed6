"""A pipeline beside bidirectional exchange: the broadcast (scatter, then all-gather), and the reduce."""

from __future__ import annotations

from gpucomm import cost
from gpucomm.reproduce.claims import Outcome, Row
from gpucomm.reproduce.linear_pipelining import between_hosts
from gpucomm.reproduce.linear_pipelining.cells import MOST_RANKS, cells, pipeline
from gpucomm.reproduce.pictures import Curve, Picture
from gpucomm.reproduce.run import Call, Cell, Run, ratio

__all__ = ["lp_vs_be_broadcast"]

_FROM_X = 5000
_FAR = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_BE = "bidirectional_exchange"


def lp_vs_be_broadcast(run: Run) -> Outcome:
    """The pipeline's bandwidth over the exchange's, on a switch."""
    collectives = ("broadcast",) if run.quick else ("broadcast", "reduce")
    (cell,) = cells(run, "switch", (5000,), (5000,))
    ranks = (MOST_RANKS,) if run.quick else run.worlds()
    rows = []
    for collective in collectives:
        for some in cells(run, "switch", (5000,), (10, 54, 500, 5000, 6000)):
            rows.append(_row(run, some, MOST_RANKS, collective))
        rows += [_row(run, cell, p, collective) for p in ranks if p < MOST_RANKS]
    rows += between_hosts.exchange_rows(run)
    measured = {p: _ratio(run, cell, p) for p in ranks}
    run.tell("simulating broadcasts of up to 2048 ranks")
    worlds = [p for p in _FAR if p <= (512 if run.quick else 2048)]
    ours, theirs = (
        cost.simulate("broadcast", name, worlds=worlds, nbytes=cell.nbytes, links=cell.model)
        for name in ("linear_pipeline", _BE)
    )
    model = [be.seconds / lp.seconds for lp, be in zip(ours, theirs, strict=True)]
    for p, goal, note in (
        (MOST_RANKS, 1.5, "the limit for long messages is 2(p-1)/p = 1.75"),
        (worlds[-1], None, "the fill of the pipeline, p - 2 segments, eats the gain unless x grows with p"),
    ):
        i = worlds.index(p)
        samples = {"linear_pipeline": [ours[i].seconds], "bidirectional_exchange": [theirs[i].seconds]}
        fixed = (run.setting(cell, p, repeats=1), samples, note)
        rows.append(Row("lp_vs_be_broadcast", 2.0, model[i], "T(BE)/T(LP)", "simulated", ">=", goal, *fixed))
    curves = [
        Curve("emulated", list(measured), list(measured.values())),
        Curve("simulated", worlds, model, model=True, like=0),
        Curve("2(p-1)/p, the limit for long messages", worlds, [2 * (p - 1) / p for p in worlds], model=True),
    ]
    title = f"Broadcast on a switch, x = {cell.x:g}: time by BE over time by LP"
    return Outcome(rows, Picture(title, "ranks p", "T(BE) / T(LP)", curves, log_x=True))


def _calls(run: Run, cell: Cell, p: int) -> dict[str, tuple[Call, Call]]:
    collectives = ("broadcast",) if run.quick else ("broadcast", "reduce")
    return {name: (pipeline(name, "linear_pipeline", p, cell), Call(name, _BE)) for name in collectives}


def _times(run: Run, cell: Cell, p: int, collective: str) -> tuple[list[float], list[float]]:
    """By the pipeline, and by the exchange; all are measured together."""
    calls = _calls(run, cell, p)
    found = run.times(cell, p, *(call for both in calls.values() for call in both))
    at = 2 * list(calls).index(collective)
    return found[at], found[at + 1]


def _ratio(run: Run, cell: Cell, p: int) -> float:
    ours, theirs = _times(run, cell, p, "broadcast")
    return ratio(theirs, ours)


def _row(run: Run, cell: Cell, p: int, collective: str) -> Row:
    lp, be = _calls(run, cell, p)[collective]
    ours, theirs = _times(run, cell, p, collective)
    text = f"{collective}; the model: {be.model_s(cell, p) / lp.model_s(cell, p):.3f}"
    paper, goal = None, None
    if collective == "broadcast":
        paper, goal = 2.0, 1.5 if p == MOST_RANKS and cell.x >= _FROM_X else None
    samples = {"linear_pipeline": ours, _BE: theirs}
    figures = (paper, ratio(theirs, ours), "T(BE)/T(LP)", "emulated", ">=", goal)
    return Row("lp_vs_be_broadcast", *figures, run.setting(cell, p), samples, run.note(cell, p, text))
