"""The picture of a plan: time to the right, a lane a rank, a line a message, coloured by its piece."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import BoundaryNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gpucomm import _core
from gpucomm.draw import Message
from gpucomm.kinds import ROOTED

__all__ = ["Picture"]

_MOST_NAMED = 32  # pieces named one by one; more get a scale
_SEND, _RECEIVE, _HEIGHT = -0.18, 0.18, 0.3  # where the two bars of a lane lie, and how high they are
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


class Picture:
    """One drawing under way."""

    def __init__(
        self, plans: Sequence[_core.Plan], schedule: _core.Schedule, moved: Sequence[Message], chain: bool
    ) -> None:
        self._plan, self._schedule, self._moved = plans[0], schedule, moved
        self._unit_s, self._unit = next((u for u in _UNITS if schedule.total_s >= u[0]), _UNITS[-1])
        ways = {(m.sender, m.receiver > m.sender) for m in moved}
        self._both = chain and any((rank, not down) in ways for rank, down in ways)
        busiest = max((sum(m.sender == plan.rank for m in moved) for plan in plans), default=0)
        self._width = min(20.0, max(9.0, 3.0 + 0.32 * busiest))
        self._figure = Figure(
            (self._width, 2.2 + (1.2 if self._both else 0.85) * len(plans)), layout="constrained"
        )
        self._axes = self._figure.add_subplot()
        self._map, self._scale = self._colours()

    def _colours(self) -> tuple[Any, Any]:
        pieces = max(1, self._plan.pieces)
        if pieces > _MOST_NAMED:
            return matplotlib.colormaps["turbo"], Normalize(0, pieces - 1)
        table = (
            matplotlib.colormaps["tab10"] if pieces <= 10 else matplotlib.colormaps["turbo"].resampled(pieces)
        )
        return table, BoundaryNorm([k - 0.5 for k in range(max(pieces, table.N) + 1)], table.N)

    def _colour(self, piece: int) -> Any:
        return self._map(self._scale(piece))

    def figure(self, subtitle: str) -> Any:
        """Draw everything."""
        plan = self._plan
        self._lanes()
        self._lines()
        self._bars()
        self._numbers()
        size = f"{_count(plan.world, 'rank')}, {_count(plan.segments, 'segment')}"
        title = f"{plan.collective} by {plan.algorithm}: {size}"
        self._figure.suptitle(title, x=0.01, ha="left", weight="bold", size=14)
        self._axes.set_title(textwrap.fill(subtitle, int(self._width * 10)), loc="left", size=11)
        self._legend()
        return self._figure

    def _lanes(self) -> None:
        axes, world = self._axes, self._plan.world
        for rank in range(0, world, 2):
            axes.axhspan(rank - 0.5, rank + 0.5, color="#f3f3f3", zorder=0)
        rooted = self._plan.collective in ROOTED
        names = [f"rank {r}" + ("\n(root)" if rooted and r == self._plan.root else "") for r in range(world)]
        axes.set_yticks(range(world), names)
        axes.set_ylim(world - 0.5, -0.5)
        axes.set_xlim(0, max(self._schedule.total_s / self._unit_s, 1e-9) * 1.005)
        axes.set_xlabel(f"time ({self._unit})")
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)

    def _track(self, rank: int, peer: int, middle: float) -> tuple[float, float]:
        """Top and bottom of a bar; where a rank talks both ways at once, above and below have a half each."""
        top, height = rank + middle - _HEIGHT / 2, _HEIGHT
        if self._both:
            height /= 2
            top += height if peer > rank else 0.0
        return top, top + height

    def _box(self, times: tuple[float, float], track: tuple[float, float]) -> list[tuple[float, float]]:
        (left, right), (top, bottom) = (time / self._unit_s for time in times), track
        return [(left, top), (right, top), (right, bottom), (left, bottom)]

    def _bars(self) -> None:
        def boxes(shapes: Sequence[Any], **style: Any) -> None:
            self._axes.add_collection(PolyCollection(shapes, linewidths=0.4, zorder=2, **style))

        for reduces, hatch in ((False, None), (True, "////")):
            some = [m for m in self._moved if m.reduces == reduces]
            colours = [self._colour(m.piece) for m in some]
            sends = [self._box((m.start_s, m.left_s), self._track(m.sender, m.receiver, _SEND)) for m in some]
            receives = [
                self._box((m.begins_s, m.arrived_s), self._track(m.receiver, m.sender, _RECEIVE))
                for m in some
            ]
            boxes(sends, facecolors=colours, edgecolors="white")
            pale = [[1 - 0.4 * (1 - part) for part in colour[:3]] for colour in colours]
            boxes(receives, facecolors=pale, edgecolors=colours, hatch=hatch)
        # What a rank computes: only where the model gives reducing or copying a price.
        folds = [e for e in self._schedule.events if e.peer < 0 and e.end_s > e.start_s]
        thin = [self._box((e.start_s, e.end_s), (e.rank + 0.12, e.rank + 0.24)) for e in folds]
        boxes(thin, facecolors="#444444", edgecolors="white")

    def _lines(self) -> None:
        """From the sender's bar, where it begins, to the receiver's, where it ends."""
        many, very_many = len(self._moved) > 150, len(self._moved) > 600
        for down, marker in ((True, "v"), (False, "^")):
            some = [m for m in self._moved if (m.receiver > m.sender) == down]
            starts = [
                (m.start_s / self._unit_s, self._track(m.sender, m.receiver, _SEND)[down]) for m in some
            ]
            ends = [
                (m.arrived_s / self._unit_s, self._track(m.receiver, m.sender, _RECEIVE)[not down])
                for m in some
            ]
            colours = [self._colour(m.piece) for m in some]
            lines = LineCollection(
                list(zip(starts, ends, strict=True)),
                colors=colours,
                linewidths=0.5 if many else 1.1,
                zorder=1.5,
            )
            self._axes.add_collection(lines)
            marks: dict[str, Any] = {"c": colours, "marker": marker, "s": 5 if many else 14, "zorder": 2.5}
            if not very_many:
                self._axes.scatter([x for x, _ in ends], [y for _, y in ends], **marks)

    def _numbers(self) -> None:
        """The piece's number, where its bar is wide enough for it."""
        per_inch = self._schedule.total_s / (self._width - 2.2)
        for m in self._moved:
            text = str(m.piece) if m.pieces == 1 else f"{m.piece}-{m.piece + m.pieces - 1}"
            if (m.left_s - m.start_s) < per_inch * (0.05 + 0.08 * len(text)):
                continue
            bright = (
                sum(part * w for part, w in zip(self._colour(m.piece), (0.3, 0.6, 0.1), strict=False)) > 0.6
            )
            for start, track, colour in (
                (m.start_s, self._track(m.sender, m.receiver, _SEND), "black" if bright else "white"),
                (m.begins_s, self._track(m.receiver, m.sender, _RECEIVE), "black"),
            ):
                place = ((start + (m.left_s - m.start_s) / 2) / self._unit_s, sum(track) / 2)
                style: dict[str, Any] = {"ha": "center", "va": "center_baseline", "size": 8, "color": colour}
                self._axes.text(*place, text, zorder=3, **style)

    def _legend(self) -> None:
        plan = self._plan
        if plan.pieces > 1:
            word = "segment" if plan.pieces == plan.segments else "chunk" if plan.segments == 1 else "piece"
            bar = self._figure.colorbar(ScalarMappable(self._scale, self._map), ax=self._axes, pad=0.01)
            bar.set_label(word)
            if plan.pieces <= _MOST_NAMED:
                bar.set_ticks(range(plan.pieces))
                bar.ax.set_ylim(plan.pieces - 0.5, -0.5)
        handles = [
            Patch(fc="#777777", label="sends"),
            Patch(fc="#dddddd", ec="#777777", label="receives"),
            Patch(fc="#dddddd", ec="#777777", hatch="////", label="receives and reduces"),
        ]
        if any(e.peer < 0 and e.end_s > e.start_s for e in self._schedule.events):
            handles.append(Patch(fc="#444444", label="computes"))
        self._figure.legend(handles=handles, loc="outside lower left", ncols=4, frameon=False, fontsize=10)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
