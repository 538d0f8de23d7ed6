"""Tables of papers' claims, from the files under benchmarks/results/."""

from __future__ import annotations

import json
import re
from typing import Any

from generators.markdown import table
from generators.results import RESULTS
from gpucomm.units import format_size

__all__ = ["claim"]

_HOLDS = {True: "yes", False: "**no**", None: ""}
_SOME = {"c>": "codec_to_wire", "share>": "communication_share"}  # columns where a row has them


def claim(name: str) -> str:
    """Returns the rows of one claim: `paper/claim`."""
    paper, _, key = name.partition("/")
    rows = [row for row in json.loads((RESULTS / f"{paper}.json").read_text()) if row["claim"] == key]
    some = [name for name, key in _SOME.items() if any(row["setting"][key] is not None for row in rows)]
    headings = ["figure", "how", "ranks>", "bytes>", "x>", *some]
    headings += ["paper>", "ours>", "goal>", "holds", "note"]
    return table(headings, [_line(row, some) for row in rows])


def _line(row: dict[str, Any], some: list[str]) -> list[str]:
    under = row["setting"]
    paper = "" if row["paper"] is None else f"{row['paper']:g}"
    goal = "" if row["goal"] is None else f"{row['relation']} {row['goal']:.4g}"
    unit = re.sub(r"([*_])", r"\\\1", row["unit"])
    line = [unit, row["how"], f"{under['ranks']}", format_size(under["bytes"]), f"{under['x']:.4g}"]
    line += ["" if under[_SOME[name]] is None else f"{under[_SOME[name]]:.3g}" for name in some]
    return [*line, paper, f"{row['ours']:.4g}", goal, _HOLDS[row["holds"]], row["note"]]
