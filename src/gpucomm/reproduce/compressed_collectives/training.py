"""FSDP2 with coded messages: the time of a step beside dense and per-hop ones, and what is learnt."""

from __future__ import annotations

from statistics import median

from gpucomm.reproduce.claims import Outcome, Row
from gpucomm.reproduce.compressed_collectives.steps import (
    AUTO,
    CODECS,
    CODED,
    CODING,
    COMPUTE,
    PER_HOP,
    RANKS,
    SHARES,
    Steps,
    losses,
    steps,
)
from gpucomm.reproduce.pictures import Curve, Picture
from gpucomm.reproduce.run import Run, ratio

__all__ = ["fsdp_loss", "fsdp_vs_dense", "fsdp_vs_per_hop"]

_SHARE = (0.70, 0.75)  # for which the paper's figures are the goals
_HEADLINE = 0.72
_POINTS, _AUTO, _NATS = 5.0, 1.05, 0.05

# the paper's, ours, unit, how, relation, goal
_Figures = tuple[float | None, float, str, str, str, float | None]


def fsdp_vs_dense(run: Run) -> Outcome:
    """How much less time a step takes than a dense one, and that "auto" hardly ever takes more."""
    found = _all(run)
    rows = [_headline_row(run, "fsdp_vs_dense", found[_HEADLINE], found[_HEADLINE].dense, 31.7)]
    rows += [_model_row(run, some) for some in found.values()]
    rows += [_auto_row(run, some) for some in found.values() if AUTO in some.times]
    xs = [some.share for some in found.values()]
    curves = [
        Curve("emulated", xs, [some.saved(CODED, some.dense) for some in found.values()]),
        Curve("the model", xs, [some.model_saved() for some in found.values()], model=True, like=0),
    ]
    if not run.quick:
        curves.append(Curve('"auto"', xs, [some.saved(AUTO, some.dense) for some in found.values()]))
    title = "FSDP2 with coded messages: how much less time a step takes than a dense one"
    picture = Picture(title, "share of communication in a dense step", "% less time than dense", curves)
    return Outcome(rows, picture)


def fsdp_vs_per_hop(run: Run) -> Outcome:
    """How much less time a step takes than one whose messages are coded at every hop."""
    found = _all(run)
    rows = [_headline_row(run, "fsdp_vs_per_hop", found[_HEADLINE], PER_HOP, 12.5)]
    names = [f"share {some.share:.2f}" for some in found.values()]
    curves = [
        Curve(label, range(len(names)), [1e3 * median(some.times[key]) for some in found.values()])
        for label, key in (
            ("coded once", CODED),
            ("per hop", PER_HOP),
            ("no communication", COMPUTE),
            ("coded once, no links", CODING),
        )
    ]
    curves.append(
        Curve("dense", range(len(names)), [1e3 * median(some.times[some.dense]) for some in found.values()])
    )
    title = f"A step of FSDP2, {RANKS} ranks, emulated switch"
    return Outcome(rows, Picture(title, "", "ms a step", curves, names=names))


def fsdp_loss(run: Run) -> Outcome:
    """How far the loss on held-out text is from dense training's after the same steps."""
    found, count, point = run.once("losses", lambda: losses(run))
    apart = found[CODED][-1] - found["dense"][-1]
    text = f"held-out loss after {count} steps, coded less dense, {found['dense'][-1]:.3f}; {_codecs()}"
    setting = run.setting(point.cell, RANKS, repeats=1)
    figures = (None, apart, "nats", "measured", "<=", _NATS)
    row = Row("fsdp_loss", *figures, setting, found, text)
    xs = [count * i / 4 for i in range(5)]
    curves = [Curve(name, xs, some) for name, some in found.items()]
    title = f"FSDP2 on Python's language reference, {RANKS} ranks: loss on held-out text"
    return Outcome([row], Picture(title, "steps", "nats a character", curves))


def _all(run: Run) -> dict[float, Steps]:
    return {share: steps(run, share) for share in ((_HEADLINE,) if run.quick else SHARES)}


def _codecs() -> str:
    return f"parameters {CODECS['all_gather']}, gradients {CODECS['reduce_scatter']}"


def _row(
    run: Run, claim: str, found: Steps, figures: _Figures, samples: dict[str, list[float]], text: str
) -> Row:
    cell = found.point.cell
    more = {"codec_to_wire": found.c, "communication_share": found.share, "repeats": len(found.times[CODED])}
    return Row(claim, *figures, run.setting(cell, RANKS, **more), samples, run.note(cell, RANKS, text))


def _headline_row(run: Run, claim: str, found: Steps, other: str, paper: float) -> Row:
    low, high = _SHARE
    text = f"against {other}; {_codecs()}"
    if not low <= found.share <= high:
        text += f"; the share is outside of {low:g} to {high:g}, for which the goal is"
    than = "per hop" if other == PER_HOP else "dense"
    figures = (paper, found.saved(CODED, other), f"% less time than {than}", "emulated", ">=", paper)
    return _row(run, claim, found, figures, found.times, text)


def _model_row(run: Run, found: Steps) -> Row:
    ours, model = found.saved(CODED, found.dense), found.model_saved()
    text = f"{ours:.1f} % less than {found.dense}, the model: {model:.1f} %; {_codecs()}"
    figures = (None, abs(ours - model), "points off the model", "emulated", "<=", _POINTS)
    samples = found.times | {f"{name} of a block, per hop": some for name, some in found.per_hop.items()}
    return _row(run, "fsdp_vs_dense", found, figures, samples, text)


def _auto_row(run: Run, found: Steps) -> Row:
    times = {name: found.times[name] for name in (AUTO, found.dense)}
    text = f'algorithm="auto" with the same codecs against {found.dense}, dense'
    figures = (None, ratio(*times.values()), "T(auto)/T(dense)", "emulated", "<=", _AUTO)
    return _row(run, "fsdp_vs_dense", found, figures, times, text)
