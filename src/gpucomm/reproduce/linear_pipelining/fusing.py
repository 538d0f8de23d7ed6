"""All-reduce with the broadcast started at once (fused): where it pays, and where it does not."""

from __future__ import annotations

from gpucomm import _core, cost
from gpucomm.reproduce.claims import Outcome, Row
from gpucomm.reproduce.linear_pipelining import between_hosts
from gpucomm.reproduce.linear_pipelining.cells import KIB, MIB, MOST_RANKS, cells, pipeline
from gpucomm.reproduce.pictures import Curve, Picture
from gpucomm.reproduce.run import Call, Cell, Run, ratio

__all__ = ["fused_vs_ring_chain", "fused_vs_unfused_chain", "switch_auto_not_fused"]

_UNFUSED, _RING = "linear_pipeline_unfused", "ring"
# On a chain what fusing can do; on a switch the same chain as unfused, so that fusing alone is seen.
_FUSED = {"chain": "linear_pipeline_middle", "switch": "linear_pipeline"}
# Beside them in a full run: the other fused one, MST and BE.
_TREES = ("binomial_tree", "bidirectional_exchange")
_OTHERS = {"chain": ("linear_pipeline", *_TREES), "switch": ("linear_pipeline_middle", *_TREES)}
_FROM_X = 500


def fused_vs_unfused_chain(run: Run) -> Outcome:
    """How much faster than the whole reduce, then the whole broadcast."""
    return _on_a_chain(run, "fused_vs_unfused_chain", _UNFUSED, 1.6)


def fused_vs_ring_chain(run: Run) -> Outcome:
    """How much faster than the ring."""
    return _on_a_chain(run, "fused_vs_ring_chain", _RING, 1.4)


def _call(algorithm: str, p: int, cell: Cell) -> Call:
    if algorithm.startswith("linear_pipeline"):
        return pipeline("all_reduce", algorithm, p, cell)
    return Call("all_reduce", algorithm)


def _times(run: Run, cell: Cell, p: int) -> dict[str, list[float]]:
    """Seconds of all, which are measured together."""
    names = (_FUSED[cell.kind], _UNFUSED, _RING, *(() if run.quick else _OTHERS[cell.kind]))
    return dict(zip(names, run.times(cell, p, *(_call(name, p, cell) for name in names)), strict=True))


def _model(cell: Cell, p: int, other: str) -> float:
    return _call(other, p, cell).model_s(cell, p) / _call(_FUSED[cell.kind], p, cell).model_s(cell, p)


def _on_a_chain(run: Run, claim: str, other: str, goal: float) -> Outcome:
    measured = cells(run, "chain", (500, 1074), (10, 54, 200, 500, 1074, 5000, 6000))
    rows = [_over_fused(run, cell, MOST_RANKS, claim, other, goal) for cell in measured]
    if not run.quick:
        (cell,) = cells(run, "chain", (), (1074,))
        rows += [_over_fused(run, cell, p, claim, other, None) for p in run.worlds() if p < MOST_RANKS]
        if other == _RING:
            rows += [row for cell in measured for row in _beside(run, cell, MOST_RANKS, claim)]
    rows.append(_far_row(run, claim, other))
    xs = [2.0**i for i in range(4, 14)]
    modelled = [_model(measured[0]._replace(x=x), MOST_RANKS, other) for x in xs]
    ours = [
        ratio(_times(run, cell, MOST_RANKS)[other], _times(run, cell, MOST_RANKS)[_FUSED["chain"]])
        for cell in measured
    ]
    curves = [
        Curve("emulated", [cell.x for cell in measured], ours),
        Curve("the model", xs, modelled, model=True, like=0),
        Curve("the goal, from x = 500 on", [_FROM_X, xs[-1]], [goal, goal], model=True),
    ]
    how = "unfused" if other == _UNFUSED else f"by {other}"
    title = f"All-reduce on a chain of 8: time {how} over time by the fused pipeline"
    return Outcome(rows, Picture(title, "x = n beta / alpha", f"T({other}) / T(fused)", curves, log_x=True))


def _over_fused(run: Run, cell: Cell, p: int, claim: str, other: str, goal: float | None) -> Row:
    times, fused = _times(run, cell, p), _FUSED[cell.kind]
    if cell.x < _FROM_X or p < MOST_RANKS:
        goal = None  # it is for p = 8 and long messages
    return Row(
        claim,
        None,
        ratio(times[other], times[fused]),
        f"T({other})/T(fused)",
        "emulated",
        ">=",
        goal,
        run.setting(cell, p),
        {fused: times[fused], other: times[other]},
        run.note(cell, p, f"the model: {_model(cell, p, other):.3f}"),
    )


def _beside(run: Run, cell: Cell, p: int, claim: str) -> list[Row]:
    """How much longer the other fused pipeline takes, and the trees and exchanges of the paper."""
    return [_over_fused(run, cell, p, claim, other, None) for other in _OTHERS[cell.kind]]


def _far_row(run: Run, claim: str, other: str) -> Row:
    p = 512 if run.quick else 2048  # a ring of 2048 takes some seconds and a gigabyte
    run.tell(f"simulating all-reduces of {p} ranks")
    (cell,) = cells(run, "chain", (1074,), (1074,))
    (ours,), (theirs,) = (
        cost.simulate("all_reduce", name, worlds=[p], nbytes=cell.nbytes, links=cell.model)
        for name in (_FUSED["chain"], other)
    )
    samples = {_FUSED["chain"]: [ours.seconds], other: [theirs.seconds]}
    text = f"{ours.segments} segments; the pipeline's fill is p - 1 of them, so x must grow with p"
    figures = (None, theirs.seconds / ours.seconds, f"T({other})/T(fused)", "simulated", ">=", None)
    return Row(claim, *figures, run.setting(cell, p, repeats=1), samples, text)


def switch_auto_not_fused(run: Run) -> Outcome:
    """On a switch: what fusing gains, how much faster the ring is, and how often "auto" fuses."""
    claim = "switch_auto_not_fused"
    measured = cells(run, "switch", (1074,), (10, 54, 200, 1074, 5000, 6000))
    rows = [row for cell in measured for row in _switch_rows(run, cell, MOST_RANKS, claim)]
    if not run.quick:
        (cell,) = cells(run, "switch", (), (1074,))
        fewer = run.worlds()[:-1]
        rows += [row for p in fewer for row in _switch_rows(run, cell, p, claim)]
        rows += [row for some in measured for row in _beside(run, some, MOST_RANKS, claim)]
        rows += [row for p in fewer for row in _beside(run, cell, p, claim)]
    rows += between_hosts.fusing_rows(run)
    rows.append(_count_row(run, claim))
    names = [f"x = {cell.x:g}" for cell in measured]
    medians = {
        name: [ratio(_times(run, cell, MOST_RANKS)[name], [cell.x * cell.alpha]) for cell in measured]
        for name in _times(run, measured[0], MOST_RANKS)
    }
    curves = [Curve(name, range(len(names)), some) for name, some in medians.items()]
    title = "All-reduce on an emulated switch, p = 8: fusing does not pay"
    return Outcome(rows, Picture(title, "", "T / (n beta)", curves, names=names))


def _switch_rows(run: Run, cell: Cell, p: int, claim: str) -> list[Row]:
    times, fixed, fused = _times(run, cell, p), run.setting(cell, p), _FUSED[cell.kind]
    most = p == MOST_RANKS  # the goals are for these
    note = run.note(cell, p, f"the model: {_model(cell, p, _UNFUSED):.3f}")
    gain = ratio(times[_UNFUSED], times[fused])
    figures = (None, gain, f"T({_UNFUSED})/T(fused)", "emulated", "<=", 1.1 if most else None, fixed)
    first = Row(claim, *figures, {name: times[name] for name in (fused, _UNFUSED)}, note)
    note = run.note(cell, p, f"the model: {1 / _model(cell, p, _RING):.3f}")
    behind = ratio(times[fused], times[_RING])
    figures = (None, behind, f"T(fused)/T({_RING})", "emulated", ">=", 1.0 if most else None, fixed)
    return [first, Row(claim, *figures, {name: times[name] for name in (fused, _RING)}, note)]


def _count_row(run: Run, claim: str) -> Row:
    """Asks for the choice of a communicator in many settings; nothing is sent for it."""
    run.tell('asking what "auto" chooses on switches')
    taken: dict[str, list[float]] = {}
    alpha, xs, sizes = 1e-4, (6, 54, 200, 500, 1074, 5000), (64 * KIB, MIB, 16 * MIB, 64 * MIB)
    worlds = run.worlds()
    for p in worlds:
        for nbytes in sizes:
            for x in xs:
                links = _core.Links("switch", alpha=alpha, beta=x * alpha / nbytes)
                name = _core.choose("all_reduce", nbytes, p, links)[0]
                taken.setdefault(name, []).append(p)
    total = sum(map(len, taken.values()))
    cell = Cell("switch", sizes[-1], xs[-1], alpha)
    text = (
        f"of {total} settings (p = {', '.join(map(str, worlds))}; 64 KiB to 64 MiB; x = 6 to 5000) in which "
        '"auto" takes a fused pipeline; samples: the ranks of the settings by the algorithm taken'
    )
    fused = sum(len(taken.get(name, [])) for name in _FUSED.values())
    figures = (None, float(fused), "settings", "counted", "==", 0.0)
    return Row(claim, *figures, run.setting(cell, worlds[-1], repeats=1), taken, text)
