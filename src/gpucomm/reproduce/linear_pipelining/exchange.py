"""The broadcast by a pipeline beside that by bidirectional exchange (scatter, then all-gather)."""

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
_BE = Call("broadcast", "bidirectional_exchange")


def lp_vs_be_broadcast(run: Run) -> Outcome:
    """The pipeline's bandwidth over the exchange's, on a switch."""
    rows = [_row(run, cell, MOST_RANKS) for cell in cells(run, "switch", (5000,), (54, 500, 5000, 6000))]
    (cell,) = cells(run, "switch", (5000,), (5000,))
    ranks = (MOST_RANKS,) if run.quick else run.worlds()
    rows += [_row(run, cell, p) for p in ranks if p < MOST_RANKS]
    rows += between_hosts.exchange_rows(run)
    measured = {p: _ratio(run, cell, p) for p in ranks}
    run.tell("simulating broadcasts of up to 2048 ranks")
    worlds = [p for p in _FAR if p <= (512 if run.quick else 2048)]
    ours, theirs = (
        cost.simulate("broadcast", name, worlds=worlds, nbytes=cell.nbytes, links=cell.model)
        for name in ("linear_pipeline", _BE.algorithm)
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


def _calls(cell: Cell, p: int) -> tuple[Call, Call]:
    return pipeline("broadcast", "linear_pipeline", p, cell), _BE


def _ratio(run: Run, cell: Cell, p: int) -> float:
    ours, theirs = run.times(cell, p, *_calls(cell, p))
    return ratio(theirs, ours)


def _row(run: Run, cell: Cell, p: int) -> Row:
    lp, be = _calls(cell, p)
    ours, theirs = run.times(cell, p, lp, be)
    text = f"the model: {be.model_s(cell, p) / lp.model_s(cell, p):.3f}"
    goal = 1.5 if p == MOST_RANKS and cell.x >= _FROM_X else None
    return Row(
        "lp_vs_be_broadcast",
        2.0,
        ratio(theirs, ours),
        "T(BE)/T(LP)",
        "emulated",
        ">=",
        goal,
        run.setting(cell, p),
        {"linear_pipeline": ours, "bidirectional_exchange": theirs},
        run.note(cell, p, text),
    )
