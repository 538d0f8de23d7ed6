"""Tables of papers' claims, from the files under benchmarks/results/."""

from __future__ import annotations

import json
from typing import Any

from generators.markdown import table
from generators.results import RESULTS

__all__ = ["claim"]

_HOLDS = {True: "yes", False: "**no**", None: ""}


def claim(name: str) -> str:
    """Returns the rows of one claim: `paper/claim`."""
    paper, _, key = name.partition("/")
    rows = [row for row in json.loads((RESULTS / f"{paper}.json").read_text()) if row["claim"] == key]
    headings = ["figure", "how", "ranks>", "bytes>", "x>", "paper>", "ours>", "goal>", "holds", "note"]
    return table(headings, [_line(row) for row in rows])


def _line(row: dict[str, Any]) -> list[str]:
    under = row["setting"]
    size = f"{under['bytes'] >> 20} MiB" if under["bytes"] >> 20 else f"{under['bytes'] >> 10} KiB"
    paper = "" if row["paper"] is None else f"{row['paper']:g}"
    goal = "" if row["goal"] is None else f"{row['relation']} {row['goal']:g}"
    line = [row["unit"].replace("_", "\\_"), row["how"], f"{under['ranks']}", size, f"{under['x']:g}", paper]
    return [*line, f"{row['ours']:.4g}", goal, _HOLDS[row["holds"]], row["note"]]
