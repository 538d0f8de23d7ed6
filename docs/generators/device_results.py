"""Tables of what was measured on a GPU, from benchmarks/results/h200.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from device_goals import reached

from generators.markdown import table
from generators.results import RESULTS

__all__ = ["device_results"]


def device_results(name: str) -> str:
    """Returns a table.

    Args:
        name: "kernels", "collectives", "processes", "host" for what calls take of it, or "goals".
    """
    told = json.loads((RESULTS / "h200.json").read_text())
    if name == "goals":
        return _goals(told)
    return _host(told["host"]) if name == "host" else _rows(told["sizes"], name)


def _part_of(row: dict[str, Any]) -> str:
    if "processes" in row["name"]:
        return "processes"
    return "collectives" if row["name"].startswith("all_") else "kernels"


def _rows(sizes: list[dict[str, Any]], part: str) -> str:
    """What ran, and for each size its time and the share of what a copy of its traffic would take."""
    sizes = [size for size in sizes if any(_part_of(row) == part for row in size["rows"])]
    names = dict.fromkeys(row["name"] for size in sizes for row in size["rows"] if _part_of(row) == part)
    found = [{row["name"]: row for row in size["rows"]} for size in sizes]
    headings = [f"{size['mib']} MiB>" for size in sizes]
    lines = [[name, *_figures(name, found)] for name in names]
    return table(["", *(h for heading in headings for h in (heading, "of a copy>"))], lines)


def _figures(name: str, found: list[dict[str, Any]]) -> Iterator[str]:
    for rows in found:
        row = rows.get(name)
        yield f"{row['time_us']:,.0f} us" if row else ""
        yield f"{row['of_floor']:.2f}" if row else ""


def _host(rows: list[dict[str, Any]]) -> str:
    lines = [
        [
            row["name"],
            f"{row['call_us']:.0f} us",
            f"{row['enqueuing_us']:.1f} us",
            row["steps"],
            f"{row['step_us']:.1f} us",
        ]
        for row in rows
    ]
    return table(["", "a call>", "to enqueue>", "kernels and copies>", "each>"], lines)


def _goals(told: dict[str, Any]) -> str:
    lines = [
        [
            one.goal.what,
            f"{one.goal.relation} {one.goal.goal:.2f}",
            f"{one.ours:.2f}",
            one.row,
            "yes" if one.holds else "no",
        ]
        for one in reached(told)
    ]
    return table(["", "goal>", "measured>", "furthest from it", "reached"], lines)
