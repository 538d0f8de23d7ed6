"""A plan as a picture: time to the right, one lane a rank, a line for every message, coloured by its piece."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpucomm import _core
from gpucomm.cost import Message, messages
from gpucomm.errors import InvalidArgumentError, UnavailableError

__all__ = ["draw_plans"]

SUFFIXES = (".png", ".svg")
MOST_MESSAGES = 5000  # more can not be told apart
_MOST_NAMED = 16  # pieces in the legend; more get a scale
_SEND, _RECEIVE, _HEIGHT = -0.17, 0.17, 0.28  # where the two bars of a lane lie, and how high they are
_PALE, _DARK, _FOLD = 0.4, "#222222", "#555555"
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def draw_plans(
    plans: Sequence[_core.Plan], schedule: _core.Schedule, links: _core.Links, subtitle: str, path: Path
) -> None:
    """Draw the plans of one call as they run on a model of the links.

    Args:
        plans: every rank's plan.
        schedule: when their steps run.
        links: the model of the links that it was made on.
        subtitle: a line below the title.
        path: where the picture goes; .png or .svg.

    Raises:
        InvalidArgumentError: another suffix, a path that cannot be written, or too much for one picture.
        UnavailableError: matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        known = " or ".join(SUFFIXES)
        raise InvalidArgumentError(f"the picture's name {str(path)!r} must end in {known}, not {path.suffix!r}")
    moved = messages(plans, schedule, links)
    if len(moved) > MOST_MESSAGES:
        raise InvalidArgumentError(
            f"a picture of {len(moved)} messages is not readable, at most {MOST_MESSAGES} are drawn:"
            " take fewer ranks or segments"
        )
    try:
        import matplotlib
    except ImportError:
        raise UnavailableError(
            "pictures need matplotlib, which is not installed: pip install 'gpucomm[bench]'"
        ) from None
    settings = {"svg.hashsalt": "gpucomm", "font.size": 11, "hatch.linewidth": 0.7}
    with matplotlib.rc_context(settings):
        figure = _Picture(plans, schedule, moved).figure(subtitle)
        _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    stamp = {"Date": None} if path.suffix.lower() == ".svg" else {}  # the same plan gives the same file
    try:
        figure.savefig(path, dpi=150, metadata=stamp)
    except OSError as error:
        raise InvalidArgumentError(f"the picture {str(path)!r} cannot be written: {error}") from error


class _Picture:
    """One drawing under way; matplotlib is imported by then."""

    def __init__(
        self, plans: Sequence[_core.Plan], schedule: _core.Schedule, moved: Sequence[Message]
    ) -> None:
        import matplotlib
        from matplotlib.colors import Normalize
        from matplotlib.figure import Figure

        self._plans, self._schedule, self._moved = plans, schedule, moved
        self._unit_s, self._unit = next((u for u in _UNITS if schedule.total_s >= u[0]), _UNITS[-1])
        self._pieces = max(1, plans[0].pieces)
        few = self._pieces <= 10
        self._map = matplotlib.colormaps["tab10" if few else "turbo"]
        self._scale = Normalize(0, 9 if few else self._pieces - 1)
        busiest = max((sum(m.sender == plan.rank for m in moved) for plan in plans), default=0)
        self._width = min(20.0, max(9.0, 3.0 + 0.32 * busiest))
        self._figure = Figure((self._width, 2.2 + 0.85 * len(plans)), layout="constrained")
        self._axes = self._figure.add_subplot()

    def figure(self, subtitle: str) -> Any:
        """Draw everything."""
        self._lanes()
        for reduces in (False, True):
            self._bars([m for m in self._moved if m.reduces == reduces], reduces)
        self._folds()
        self._lines()
        self._labels()
        plan = self._plans[0]
        counts = f"{_count(plan.world, 'rank')}, {_count(plan.segments, 'segment')}"
        self._figure.suptitle(
            f"{plan.collective} by {plan.algorithm}: {counts}", x=0.01, ha="left", weight="bold", size=14
        )
        self._axes.set_title(subtitle, loc="left", size=11)
        self._legend()
        return self._figure

    def _lanes(self) -> None:
        axes, world = self._axes, len(self._plans)
        for rank in range(0, world, 2):
            axes.axhspan(rank - 0.5, rank + 0.5, color="#f3f3f3", zorder=0)
        rooted = self._plans[0].collective in ("reduce", "broadcast")
        root = self._plans[0].root if rooted else -1
        axes.set_yticks(range(world), [f"rank {r}" + ("\n(root)" if r == root else "") for r in range(world)])
        axes.set_ylim(world - 0.5, -0.5)
        axes.set_xlim(0, max(self._schedule.total_s / self._unit_s, 1e-9) * 1.005)
        axes.set_xlabel(f"time ({self._unit})")
        axes.tick_params(axis="y", length=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)

    def _colour(self, piece: int) -> Any:
        return self._map(self._scale(piece))

    def _bars(self, some: Sequence[Message], reduces: bool) -> None:
        if not some:
            return
        colours = [self._colour(m.piece) for m in some]
        pale = [(*colour[:3], _PALE) for colour in colours]
        sends = [self._box(m.start_s, m.left_s, m.sender + _SEND) for m in some]
        receives = [self._box(m.begins_s, m.arrived_s, m.receiver + _RECEIVE) for m in some]
        self._boxes(sends, facecolors=colours, edgecolors="white", linewidths=0.4)
        hatch = {"hatch": "////"} if reduces else {}
        self._boxes(receives, facecolors=pale, edgecolors=colours, linewidths=0.4, **hatch)

    def _folds(self) -> None:
        """What a rank computes: only where the model gives reducing or copying a price."""
        events = [e for e in self._schedule.events if e.peer < 0 and e.end_s > e.start_s]
        folds = [self._box(e.start_s, e.end_s, e.rank + _RECEIVE) for e in events]
        self._boxes(folds, facecolors=_FOLD, edgecolors="white", linewidths=0.4)

    def _box(self, start_s: float, end_s: float, middle: float) -> list[tuple[float, float]]:
        left, right = start_s / self._unit_s, end_s / self._unit_s
        top, bottom = middle - _HEIGHT / 2, middle + _HEIGHT / 2
        return [(left, top), (right, top), (right, bottom), (left, bottom)]

    def _boxes(self, boxes: Sequence[Iterable[tuple[float, float]]], **style: Any) -> None:
        from matplotlib.collections import PolyCollection

        self._axes.add_collection(PolyCollection(boxes, zorder=2, **style))

    def _lines(self) -> None:
        """From the sender's bar, where it begins, to the receiver's, where it ends."""
        from matplotlib.collections import LineCollection

        lines = []
        for m in self._moved:
            down = m.receiver > m.sender
            begin = m.sender + _SEND + (_HEIGHT / 2 if down else -_HEIGHT / 2)
            end = m.receiver + _RECEIVE + (-_HEIGHT / 2 if down else _HEIGHT / 2)
            lines.append([(m.start_s / self._unit_s, begin), (m.arrived_s / self._unit_s, end)])
        colours = [self._colour(m.piece) for m in self._moved]
        many = len(lines) > 150
        self._axes.add_collection(
            LineCollection(lines, colors=colours, linewidths=0.5 if many else 1.1, zorder=1.5)
        )
        if not many:
            for line, colour in zip(lines, colours, strict=True):
                style = {"arrowstyle": "-|>", "color": colour, "lw": 0, "mutation_scale": 9, "shrinkB": 0}
                self._axes.annotate("", line[1], line[0], arrowprops=style, zorder=1.6)

    def _labels(self) -> None:
        """The piece's number, where its bar is wide enough for it."""
        per_inch = self._schedule.total_s / (self._width - 1.6)
        for m in self._moved:
            last = m.piece + m.pieces - 1
            text = str(m.piece) if m.pieces == 1 else f"{m.piece}–{last}"
            if (m.left_s - m.start_s) < per_inch * (0.06 + 0.085 * len(text)):
                continue
            for middle, y, colour in (
                (m.start_s + m.left_s, m.sender + _SEND, "white"),
                (m.begins_s + m.arrived_s, m.receiver + _RECEIVE, _DARK),
            ):
                self._axes.text(
                    middle / 2 / self._unit_s, y, text, ha="center", va="center", size=8, color=colour, zorder=3
                )

    def _legend(self) -> None:
        from matplotlib.patches import Patch

        plan = self._plans[0]
        word = "segment" if plan.pieces == plan.segments else "chunk" if plan.segments == 1 else "piece"
        handles = [
            Patch(fc="#777777", label="sends"),
            Patch(fc="#dddddd", ec="#777777", label="receives"),
            Patch(fc="#dddddd", ec="#777777", hatch="////", label="receives and reduces"),
        ]
        if self._pieces <= _MOST_NAMED:
            handles += [Patch(fc=self._colour(k), label=f"{word} {k}") for k in range(self._pieces)]
        else:
            from matplotlib.cm import ScalarMappable

            bar = self._figure.colorbar(ScalarMappable(self._scale, self._map), ax=self._axes, pad=0.01)
            bar.set_label(word)
        columns = max(3, int(self._width / 1.9))
        self._figure.legend(handles=handles, loc="outside lower left", ncols=columns, frameon=False, fontsize=10)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
