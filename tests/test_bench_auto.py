"""`gpucomm bench-auto`: its arithmetic, and a small real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ALGORITHMS

from gpucomm import cli
from gpucomm.bench.auto_command import Cell, summary

FIELDS = [
    *("links", "ranks", "collective", "nbytes", "codec", "taken", "best", "auto_s", "best_s", "ratio"),
    *("first", "learnt_in", "marked"),
]


def cell(ratio: float, links: str = "shm", ranks: int = 2) -> Cell:
    return Cell(links, ranks, "all_reduce", 1024, ("ring", 1), ("direct", 2), ratio * 1e-3, 1e-3, 50)


def test_summary_has_percentiles_of_every_group_and_the_worst_cells() -> None:
    lines = summary([cell(1 + i / 100) for i in range(20)] + [cell(3.0, "switch:1Gbit", 4)]).splitlines()
    groups = {tuple(line.split()[:2]): line.split()[2:] for line in lines[1:4]}
    assert groups["shm", "2"] == ["20", "1.095", "1.180", "1.190"]
    assert groups["switch:1Gbit", "4"] == ["1", "3.000", "3.000", "3.000"]
    assert groups["all", "21"] == ["1.100", "1.190", "3.000"]
    assert lines[6].split()[0] == "3.00"
    assert "all_reduce 1 KiB, 4 ranks, switch:1Gbit: ring 1 (3 ms), best direct 2 (1 ms)" in lines[6]


def test_links_too_fast_for_the_machine_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cells.json"
    arguments = ["--ranks", "2", "--sizes", "8", "--repeats", "1", "--least", "0.0001"]
    arguments += ["--links", "switch:9Tbit", "--collectives", "gather", "--json", str(file)]
    cli.main(["bench-auto", *arguments])
    sentence = "what is measured on them is the machine's, not the links'"
    assert sentence in json.loads(file.read_text())[0]["marked"]
    assert capsys.readouterr().out.count(sentence) == 1


def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cells.json"
    arguments = ["--ranks", "2", "--sizes", "1K", "--links", "shm", "--repeats", "1", "--least", "0.0001"]
    code = cli.main(["bench-auto", *arguments, "--collectives", "all_reduce,gather", "--json", str(file)])
    assert code in (0, 1)  # a single repetition shows nothing
    rows = json.loads(file.read_text())
    assert [row["collective"] for row in rows] == ["all_reduce", "gather"]
    for row in rows:
        assert row["ratio"] == row["auto_s"] / row["best_s"] > 0
        assert row["learnt_in"] >= 1
    assert "the worst:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("links", "chosen", "collectives"),
    [
        ("shm", [], ["all_reduce", "all_gather", "reduce_scatter"]),
        ("switch:20Mbit", ["--collectives", "all_reduce"], ["all_reduce"]),
    ],
)
def test_a_codec_that_auto_may_take(
    tmp_path: Path, links: str, chosen: list[str], collectives: list[str]
) -> None:
    """On a slow link it does: 7 ms without, 2 ms with it. In memory it may or may not."""
    file = tmp_path / "cells.json"
    arguments = ["--codec", "int8", "--ranks", "2", "--sizes", "16K", "--links", links, *chosen]
    code = cli.main(["bench-auto", *arguments, "--repeats", "1", "--least", "0.0001", "--json", str(file)])
    assert code in (0, 1)  # a single repetition shows nothing
    rows = json.loads(file.read_text())
    assert [row["collective"] for row in rows] == collectives
    for row in rows:
        assert row.keys() == set(FIELDS)
        assert (row["links"], row["ranks"], row["nbytes"], row["codec"]) == (links, 2, 16384, "int8")
        assert row["ratio"] == row["auto_s"] / row["best_s"] > 0
        assert row["learnt_in"] >= 1
        coded, compared = (ALGORITHMS[row[kind][0]]["coded"] for kind in ("taken", "best"))
        assert not compared
        assert coded or links == "shm"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ranks", "1"], "at least 2"),
        (["--ranks", "\u00b2"], "at least 2"),
        (["--links", "shm;foo"], "foo"),
        (["--ranks", "2", "--links", "shm;nodes:1Gbit,of=2x2"], "2x2"),
        (["--collectives", "barrier"], "none of all_reduce"),
        (["--codec", "int8", "--collectives", "gather"], "'gather' is none of all_reduce, all_gather, red"),
        (["--codec", "int9"], "unknown codec 'int9'"),
        (["--repeats", "0"], "--repeats 0 must be at least 1"),
        (["--least", "-1"], "--least -1.0 must be a number of seconds above 0"),
        (["--least", "nan"], "--least nan must be a number of seconds above 0"),
    ],
)
def test_bad_arguments(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench-auto", *arguments]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--links", ";"), ("--ranks", ","), ("--collectives", ",")])
def test_empty_lists_are_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench-auto", option, value]) == 2
    assert f"{option} must name at least one" in capsys.readouterr().err
