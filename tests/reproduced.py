"""What every row of `gpucomm reproduce` has."""

from __future__ import annotations

import json
from typing import Any

from gpucomm.reproduce.claims import HOW, RELATIONS, holds

__all__ = ["SETTING", "check"]

SETTING = {"ranks", "bytes", "links", "x", "communication_share", "codec_to_wire", "repeats"}


def check(rows: list[dict[str, Any]]) -> None:
    """Asserts that rows for machines are whole and say honestly whether they hold."""
    assert json.loads(json.dumps(rows)) == rows
    for row in rows:
        assert row["how"] in HOW and row["relation"] in RELATIONS
        assert set(row["setting"]) == SETTING and row["setting"]["x"] > 0
        assert row["holds"] is holds(row["ours"], row["relation"], row["goal"])
        assert row["source"] and row["samples"] and all(row["samples"].values())
