"""What is asked of a device's kernels and collectives, and whether a run of device.py reached it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpucomm.reproduce.claims import holds

LEAST_MIB = 256  # of an array; in smaller ones a launch shows


@dataclass(frozen=True)
class Goal:
    """One goal.

    Attributes:
        what: of which rows, in words.
        names: a pattern of these rows' names: each of them is to reach it, at each size.
        key: the figure in a row.
        relation: "<=" or ">=".
        goal: what it is to be.
        beside: the row of the same size whose figure it is divided by.
    """

    what: str
    names: str
    key: str
    relation: str
    goal: float
    beside: str = ""


@dataclass(frozen=True)
class Reached:
    """A goal with the figure furthest from it.

    Attributes:
        goal: the goal.
        ours: the figure.
        row: the name of its row, and the size.
    """

    goal: Goal
    ours: float
    row: str

    @property
    def holds(self) -> bool:
        """Whether it is reached."""
        return bool(holds(self.ours, self.goal.relation, self.goal.goal))


_CASTS = r"(en|de)code (bf16|fp16|fp8_e4m3|int8)"
_FUSED = "decode {}, add and encode"
_PIPELINE = "all_reduce linear_pipeline, {} ranks"

GOALS = (
    Goal("folds, of a copy", "reduce . x .*", "of_floor", ">=", 0.85),
    Goal("casts, `fp8` and `int8`, of a copy", _CASTS, "of_floor", ">=", 0.85),
    Goal("`zfp`, of a copy", "(en|de)code zfp:8", "of_floor", ">=", 0.6),
    Goal("decode, add and encode, of a copy", _FUSED.format("(?!zfp|mpc).*"), "of_floor", ">=", 0.8),
    Goal("the same of `zfp`", _FUSED.format("zfp:8"), "of_floor", ">=", 0.8),
    Goal("the same of `mpc`", _FUSED.format("mpc"), "of_floor", ">=", 0.8),
    Goal(
        "`int8`, time over torch.compile's", "encode int8", "time_us", "<=", 1, "encode int8, torch.compile"
    ),
    Goal(
        "`int8`, time over eager torch's", "encode int8", "time_us", "<=", 1 / 1.5, "encode int8, eager torch"
    ),
    Goal("`direct`, of a copy", r"all_reduce direct, \d ranks.*", "of_floor", ">=", 0.85),
    Goal("all_gather of `int4`, of a copy", r"all_gather int4, \d ranks.*", "of_floor", ">=", 1 / 1.15),
    Goal(
        "`linear_pipeline`, GB/s of 8 ranks over those of 2",
        _PIPELINE.format(8),
        "GBps",
        ">=",
        1 / 1.15,
        _PIPELINE.format(2),
    ),
    Goal("`direct`, us to enqueue", "all_reduce direct, . ranks", "enqueuing_us", "<=", 30),
    Goal("a graph, us to launch", "all_reduce .*, graph", "enqueuing_us", "<=", 30),
    Goal("`ring`, `linear_pipeline`, us to enqueue a step", "all_reduce [rl].* ranks", "step_us", "<=", 6),
)


def reached(told: Mapping[str, Any]) -> list[Reached]:
    """How near a run came to each goal.

    Args:
        told: what the run's file has.

    Returns:
        The goals that any row was measured for, in the order of `GOALS`.
    """
    found = ((goal, list(_figures(goal, told))) for goal in GOALS)
    return [
        Reached(goal, *(min(figures) if goal.relation == ">=" else max(figures)))
        for goal, figures in found
        if figures
    ]


def _figures(goal: Goal, told: Mapping[str, Any]) -> Iterator[tuple[float, str]]:
    sizes = [(f", {size['mib']} MiB", size["rows"]) for size in told["sizes"] if size["mib"] >= LEAST_MIB]
    for suffix, rows in [*sizes, ("", told["host"])]:
        figures = {row["name"]: row[goal.key] for row in rows if goal.key in row}
        for name, figure in figures.items():
            if re.fullmatch(goal.names, name) and (not goal.beside or goal.beside in figures):
                yield figure / figures.get(goal.beside, 1), name + suffix
