"""The picture of a claim: curves of ours, of the model and of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Curve", "Picture", "draw"]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart by everybody
_MOST_BARS = 20  # whose figures have room beside each other in full


@dataclass(frozen=True)
class Curve:
    """Points that belong together.

    Attributes:
        label: of the legend.
        xs, ys: the points.
        model: computed, so a thin dashed line instead of marks.
        like: the index of the curve whose colour it takes; its own without.
        wide: broad marks and lines, for one on which another lies.
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    model: bool = False
    like: int | None = None
    wide: bool = False


@dataclass(frozen=True)
class Picture:
    """What to draw.

    Attributes:
        title: what is seen.
        x, y: the names of the axes.
        curves: the points.
        log_x, log_y: whether an axis is logarithmic (base 2 for x).
        names: instead of numbers under the points: bars.
    """

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False
    names: Sequence[str] = ()


def draw(picture: Picture, path: Path) -> None:
    """Draws into a file; its ending says the format.

    Args:
        picture: what.
        path: where to, such as "lp_invariant.svg".
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    with matplotlib.rc_context({"svg.hashsalt": "gpucomm", "svg.fonttype": "none"}):
        figure = Figure((8.5, 4.2), layout="constrained")
        axes = figure.add_subplot()
        colours: list[str] = []
        for index, curve in enumerate(picture.curves):
            own = len({*colours}) % len(_COLOURS)
            colour = _COLOURS[own] if curve.like is None or curve.like >= index else colours[curve.like]
            colours.append(colour)
            if picture.names:
                width = 0.8 / len(picture.curves)
                places = [x + (index - (len(picture.curves) - 1) / 2) * width for x in curve.xs]
                bars = axes.bar(places, curve.ys, width, label=curve.label, color=colour)
                crowded = len(picture.curves) * len(picture.names) > _MOST_BARS
                axes.bar_label(bars, fmt="%.2g" if crowded else "%.3g", fontsize=6 if crowded else 8)
                continue
            modelled = any(other.model and other.like == index for other in picture.curves)
            style: dict[str, Any] = (
                {"linestyle": "--", "linewidth": 1.0} if curve.model else {"marker": "o", "markersize": 5}
            )
            if modelled:  # points alone: a line would hide the model's
                style |= {"linestyle": "none"}
            if curve.wide:
                style |= {"linewidth": 4.5, "markersize": 9}
            axes.plot(curve.xs, curve.ys, label=curve.label, color=colour, **style)
        if picture.names:
            axes.set_xticks(range(len(picture.names)), picture.names)
        elif picture.log_x:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
        if picture.log_y:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(LogLocator(subs=(1.2, 1.5, 2, 3, 4, 5, 7)))
            axes.yaxis.set_minor_formatter("{x:g}")
            axes.grid(axis="y", which="minor", alpha=0.3)
        elif all(y >= 0 for curve in picture.curves for y in curve.ys):
            axes.set_ylim(bottom=0)
        axes.set_xlabel(picture.x)
        axes.set_ylabel(picture.y)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(picture.title, loc="left", fontsize=11)
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
