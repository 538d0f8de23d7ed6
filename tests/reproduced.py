"""What every row of `gpucomm reproduce` has, and ranks that start soon."""

from __future__ import annotations

import json
from typing import Any

import pytest

import gpucomm
from gpucomm.reproduce.claims import HOW, RELATIONS, holds

__all__ = ["SETTING", "check", "threads"]

SETTING = {"ranks", "bytes", "links", "x", "communication_share", "codec_to_wire", "repeats"}


def check(rows: list[dict[str, Any]]) -> None:
    """Asserts that rows for machines are whole and say honestly whether they hold."""
    assert json.loads(json.dumps(rows)) == rows
    for row in rows:
        assert row["how"] in HOW and row["relation"] in RELATIONS
        assert set(row["setting"]) == SETTING and row["setting"]["x"] > 0
        assert row["holds"] is holds(row["ours"], row["relation"], row["goal"])
        assert row["source"] and row["samples"] and all(row["samples"].values())


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are threads of this process."""

    def local(ranks: int, *, links: str, env: dict[str, str], timeout: float) -> Any:
        return gpucomm.local(ranks, threads=True, links=links, timeout=timeout)

    monkeypatch.setattr("gpucomm.reproduce.run.local", local)
