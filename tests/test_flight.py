"""Flight logs: written when a call fails, and read for the first difference."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings

import numpy as np
import pytest
from ranks import outcomes_of, run_ranks

from gpucomm import _core, cli
from gpucomm.errors import CollectiveTimeoutError, MismatchError
from gpucomm.flight import first_difference


def test_the_log_holds_the_last_calls_of_every_rank():
    def body(comm):
        for _ in range(40):
            comm.all_reduce(np.ones(2), algorithm="ring", segments=1)
        comm.barrier()
        comm.barrier()
        return [row for row in comm.flight_log() if row["sequence"] <= 41]

    for rows in run_ranks(2, body):
        assert {row["rank"] for row in rows} == {0, 1}
        assert all(row["state"] == "done" for row in rows)
        mine = [row for row in rows if row["rank"] == 0]
        assert len(mine) >= 30
        assert mine[-1]["call"] == "barrier #41"
        assert mine[-2]["call"] == "all_reduce #40 (sum of 2 float64, algorithm ring, 1 segment)"


def row(rank, sequence, call="a", state="done"):
    return {"rank": rank, "sequence": sequence, "call": f"{call} #{sequence}", "state": state}


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([row(0, 1), row(1, 1)], "no difference"),
        ([row(0, 1), row(1, 1, "b")], "the ranks differ in call 1: rank 0: a #1; rank 1: b #1"),
        ([row(0, 1), row(1, 1), row(0, 2)], "a #2: ranks [0] came, ranks [1] did not"),
        ([row(0, 1), row(1, 1, state="under way")], "a #1: all ranks came, ranks [1] have not finished it"),
        ([row(0, 1), row(0, 2), row(1, 2)], "no difference"),
        ([row(1, 1), row(1, 2)], "a #1: ranks [1] came, ranks [0] did not"),
        ([], "no difference"),
        ([row(0, 1), row(0, 2), row(0, 3, state="under way"), row(1, 1)], "a #3: ranks [0] came, ranks [1]"),
        ([row(0, 1), row(0, 2, state="under way")], "a #2: ranks [0] came, ranks [1] did not"),
        ([row(0, 1), row(0, 2)], "a #1: ranks [0] came, ranks [1] did not"),
    ],
)
def test_first_difference(rows, sentence):
    assert first_difference(rows, 2).startswith(sentence)


def test_a_timeout_writes_a_log_that_names_the_missing_rank(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "not made yet" / "logs"
    monkeypatch.setenv("GPUCOMM_FLIGHT_DIR", str(folder))

    def body(comm):
        comm.barrier()
        if comm.rank == 2:
            waiting.wait(20)
            return
        try:
            comm.all_reduce(np.ones(9), algorithm="ring", timeout=0.4)
        finally:
            failed[comm.rank].set()
            if all(event.wait(10) for event in failed):
                waiting.set()

    waiting, failed = threading.Event(), [threading.Event(), threading.Event()]
    outcomes_of(3, body)
    files = sorted(folder.iterdir())
    assert len(files) == 2 and all("timed out" in json.loads(f.read_text())["error"] for f in files)
    assert cli.main(["flight", *map(str, files)]) == 0
    said = capsys.readouterr().out
    assert "rank 2: last barrier #1, done" in said
    assert (
        "all_reduce #2 (sum of 9 float64, algorithm ring, 1 segment): ranks [0, 1] came, ranks [2] did not"
        in said
    )


def test_a_mismatch_is_in_the_log(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GPUCOMM_FLIGHT_DIR", str(tmp_path))

    def body(comm):
        comm.set_links(_core.Links())
        comm.all_reduce(np.ones(3 + comm.rank), algorithm="ring")

    outcomes_of(2, body)
    assert cli.main(["flight", *map(str, tmp_path.iterdir()), "--json", str(tmp_path / "all.json")]) == 0
    assert "the ranks differ in call 1: rank 0: all_reduce #1 (sum of 3" in capsys.readouterr().out
    assert (
        "rank 1: all_reduce #1 (sum of 4"
        in json.loads((tmp_path / "all.json").read_text())[0]["first_difference"]
    )


def test_each_communicator_has_a_log_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GPUCOMM_FLIGHT_DIR", str(tmp_path))

    def body(comm):
        groups = [comm.subset([0, 1, 2, 3]), comm.split(comm.rank // 2), comm]
        for which, group in enumerate(groups):
            group.barrier()
            with pytest.raises(MismatchError):
                group.all_reduce(np.ones(100 * (1 + which) + group.rank), algorithm="ring", segments=1)

    run_ranks(4, body)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 4 * 3
    assert cli.main(["flight", *map(str, files), "--json", str(tmp_path / "all.json")]) == 0
    said = capsys.readouterr().out
    assert said.count(", 4 ranks:") == said.count(", 2 ranks:") == 2
    found = json.loads((tmp_path / "all.json").read_text())
    seen = []
    for one in found:
        assert one["first_difference"].startswith("the ranks differ in call")
        sums = {row["call"].partition("sum of ")[2][:1] for row in one["calls"]} - {""}
        assert len(sums) == 1, "calls of several communicators"
        seen += sums
    assert sorted(seen) == ["1", "2", "2", "3"]


@pytest.mark.parametrize("strict", [False, True], ids=["warned of", "where warnings are errors"])
def test_a_log_that_cannot_be_written_hides_no_error(strict, tmp_path, monkeypatch):
    (tmp_path / "no folder").touch()
    monkeypatch.setenv("GPUCOMM_FLIGHT_DIR", str(tmp_path / "no folder"))
    monkeypatch.setattr(sys, "unraisablehook", lambda told: unraisable.append(told.exc_value))
    unraisable, over = [], threading.Event()

    def body(comm):
        if comm.rank == 1:
            over.wait(20)
            return
        try:
            with pytest.raises(CollectiveTimeoutError, match="timed out"):
                comm.all_reduce(np.ones(9), algorithm="ring", segments=1, timeout=0.2)
        finally:
            over.set()

    with warnings.catch_warnings(record=not strict) as told:
        warnings.simplefilter("error" if strict else "always")
        run_ranks(2, body)
    said = unraisable if strict else [one.message for one in told]
    assert [type(one) for one in said] == [RuntimeWarning]
    assert "no flight log of rank 0 of 2" in str(said[0]) and "no folder" in str(said[0])


def test_rows_that_cannot_be_written_are_a_sentence(tmp_path, capsys):
    log = {"rank": 0, "world": 1, "communicator": "a", "calls": []}
    (tmp_path / "x.json").write_text(json.dumps(log))
    assert cli.main(["flight", str(tmp_path / "x.json"), "--json", str(tmp_path / "no" / "y.json")]) == 2
    assert "y.json' cannot be written" in capsys.readouterr().err


ROW = row(0, 1)
LOG = {"rank": 0, "world": 2, "communicator": "ab", "calls": [ROW]}


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ([], "it must have objects, got []"),
        ({}, "it lacks world, rank, communicator, calls"),
        (LOG | {"calls": [1]}, "it must have objects, got 1"),
        (LOG | {"calls": None}, "calls must be a list, got None"),
        (LOG | {"world": "2"}, "world must be a whole number from 1 to 65536, got '2'"),
        (LOG | {"world": 10**9}, "world must be a whole number from 1 to 65536, got 1000000000"),
        (LOG | {"world": True}, "world must be a whole number from 1 to 65536, got True"),
        (LOG | {"rank": 2}, "rank 2 is not in a world of 2"),
        (LOG | {"communicator": [1]}, "communicator must be a text, got [1]"),
        (LOG | {"calls": [{"rank": 0, "sequence": 1, "call": "x"}]}, "it lacks state"),
        (LOG | {"calls": [ROW, ROW | {"rank": "a"}]}, "rank must be a whole number from 0 to 65536, got 'a'"),
        (LOG | {"calls": [ROW | {"rank": 2}]}, "rank 2 is not in a world of 2"),
        (LOG | {"calls": [ROW | {"call": ["x"]}]}, "call must be a text, got ['x']"),
        (LOG | {"calls": [ROW | {"sequence": -1}]}, "sequence must be a whole number from 0 to "),
        (LOG | {"calls": [ROW | {"peer": 1}]}, "it lacks op"),
    ],
)
def test_what_is_no_log_is_a_sentence(log, words, tmp_path, capsys):
    (tmp_path / "x.json").write_text(json.dumps(log))
    assert cli.main(["flight", str(tmp_path / "x.json")]) == 2
    assert f"x.json is no flight log: {words}" in capsys.readouterr().err


@pytest.mark.parametrize("data", [b"[" * 100_000, b"\x1f\x8b\xff", b"1" * 5000])
def test_what_is_no_json_is_a_sentence(data, tmp_path, capsys):
    (tmp_path / "x.json").write_bytes(data)
    assert cli.main(["flight", str(tmp_path / "x.json")]) == 2
    assert "x.json is no flight log: " in capsys.readouterr().err


def test_what_is_no_file_is_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "x.json")
    assert cli.main(["flight", str(tmp_path / "x.json")]) == 2
    assert "x.json is no flight log: it must be a regular file" in capsys.readouterr().err


def test_a_folder_that_is_empty_text_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUCOMM_FLIGHT_DIR", "")
    monkeypatch.chdir(tmp_path)
    outcomes_of(2, lambda comm: comm.all_reduce(np.ones(9 + comm.rank)))
    assert list(tmp_path.iterdir()) == []


def test_what_a_terminal_would_obey_is_escaped(tmp_path, capsys):
    """Nor can the surrogate be printed at all."""
    log = LOG | {"communicator": "\x1b[2J", "calls": [ROW | {"call": "\x1b]0;title\x07\ud800é"}]}
    for name, one in (("x", log), ("y", LOG)):
        (tmp_path / f"{name}.json").write_text(json.dumps(one))
    assert cli.main(["flight", str(tmp_path / "x.json"), str(tmp_path / "y.json")]) == 0
    said = capsys.readouterr().out
    assert "communicator \\x1b[2J, 2 ranks:" in said and "last \\x1b]0;title\\x07\\ud800é, done" in said
    assert said.replace("\n", "").isprintable()
