"""benchmarks/device_goals.py, on rows made up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def goals(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import device_goals

    yield device_goals
    del sys.modules["device_goals"]


def told(mib: int, *rows: dict[str, Any], host: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"sizes": [{"mib": mib, "rows": list(rows)}], "host": list(host)}


def test_the_row_that_is_furthest_from_a_goal_tells_whether_it_is_reached(goals: Any) -> None:
    rows = [{"name": f"reduce {k} x float32", "of_floor": of} for k, of in ((2, 0.9), (4, 0.8), (8, 0.95))]
    (one,) = goals.reached(told(256, *rows))
    assert (one.ours, one.row, one.holds) == (0.8, "reduce 4 x float32, 256 MiB", False)
    (one,) = goals.reached(told(256, rows[0], rows[2]))
    assert (one.ours, one.holds) == (0.9, True)


def test_small_arrays_tell_nothing_and_what_was_not_measured_is_left_out(goals: Any) -> None:
    assert goals.reached(told(1, {"name": "reduce 2 x float32", "of_floor": 0.1})) == []


def test_a_figure_beside_anothers_is_their_quotient(goals: Any) -> None:
    ours, theirs = (
        {"name": n, "time_us": t} for n, t in (("encode int8", 3), ("encode int8, eager torch", 6))
    )
    (one,) = goals.reached(told(256, ours, theirs))
    assert (one.ours, one.holds) == (0.5, True)
    assert goals.reached(told(256, ours)) == [], "nothing to divide by"


def test_every_goal_has_a_row_by_the_names_that_the_benchmark_gives(goals: Any) -> None:
    """Those of the file in the repository."""
    measured = json.loads((BENCHMARKS / "results" / "h200.json").read_text())
    assert [one.goal for one in goals.reached(measured)] == list(goals.GOALS)


def test_work_that_the_device_fails_in_gives_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from device_places import Host
    from device_turns import SLOT, Turns

    turns = Turns(Host(), 4096, 1)
    nan = turns.place.device.array(np.full(1024, np.nan, np.float32))

    def encode(at: list[int], x: Any = None) -> None:
        turns.place.device.encode("int8", "float32", turns.place.address(x) if x else at[0], 1024, at[SLOT])

    assert turns.row("numbers", 5120, encode).traffic_bytes == 5120
    with pytest.raises(RuntimeError, match=r"^none: .*nan"):
        turns.row("none", 5120, lambda at: encode(at, nan))
