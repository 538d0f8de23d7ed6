"""`gpucomm explain`: candidates, predictions and the choice agree with the core's."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from gpucomm import _core, cli, explain
from gpucomm.explain import candidates

COLLECTIVES = [
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
]
SLOW = _core.Links("switch", alpha=50e-6, beta=8e-9, lambda_=0.5e-3)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("nbytes", [8, 1 << 16, 1 << 26])
def test_every_candidate_is_there_and_the_taken_one_is_cheap(collective, nbytes):
    rows = candidates(collective, nbytes, 8, SLOW)
    known = _core.algorithms().items()
    offered = {
        n
        for n, about in known
        if collective in about["collectives"] and not (about["across_nodes"] or about["coded"])
    }
    assert {row["algorithm"] for row in rows} == offered
    (taken,) = [row for row in rows if row["taken"]]
    assert taken["predicted_s"] <= rows[0]["predicted_s"] * 1.02


@pytest.mark.parametrize(("world", "there"), [(2, False), (3, True)])
def test_what_is_as_another_one_among_so_few_ranks_is_no_candidate(world, there):
    names = [row["algorithm"] for row in candidates("all_reduce", 1 << 20, world, SLOW)]
    assert ("linear_pipeline_middle" in names) == there and "linear_pipeline" in names


def test_auto_does_not_fuse_on_a_switch():
    rows = candidates("all_reduce", 1 << 26, 8, SLOW)
    fused = ("linear_pipeline", "linear_pipeline_middle")
    assert [row["taken"] for row in rows if row["algorithm"] in fused] == [False, False]


@pytest.mark.parametrize("codec", ["int8", "fixed:0.01"])
def test_with_a_codec_those_that_code_are_candidates(codec):
    slow, none = (candidates("all_reduce", 1 << 24, 4, links, codec=codec) for links in (SLOW, _core.Links()))
    coded = {row["algorithm"] for row in slow if row["codec"] == codec}
    assert coded == {"coded_ring", "two_shot", "recursive_doubling"}, "and none that must be named"
    (taken,) = [row for row in slow if row["taken"]]
    dense = min(row["predicted_s"] for row in slow if row["codec"] is None)
    assert taken["algorithm"] in coded and 3 < dense / taken["predicted_s"] < 4
    coder = candidates("all_reduce", 1 << 24, 4, _core.Links(), codec=codec, speeds=(1e-6, 1e-6))
    (taken,) = [row for row in coder if row["taken"]]
    assert taken["codec"] is None, "where coding takes longer than the wire"
    assert {row["algorithm"] for row in none} == {row["algorithm"] for row in coder}
    dense = [row["algorithm"] for row in candidates("all_reduce", 1 << 24, 4, SLOW)]
    assert not coded & set(dense)


@pytest.mark.parametrize(("codec", "counts"), [("int8", 1.25), ("identity", 1.0)])
def test_in_memory_the_model_must_see_what_a_codec_has_to_gain(codec, counts):
    memory, near = _core.Links("switch", alpha=1e-7, beta=9e-10), 0
    for seconds in np.linspace(0, 6e-10, 25):
        rows = candidates("all_gather", 1 << 22, 2, memory, codec=codec, speeds=(seconds, seconds))
        least = {bool(row["codec"]): row["predicted_s"] for row in reversed(rows)}
        (taken,) = [row for row in rows if row["taken"]]
        assert bool(taken["codec"]) == (counts * least[True] < least[False])
        said = explain._reason(rows)
        assert ("which in memory must gain" in said) == (rows[0]["codec"] is not None and not taken["codec"])
        near += "which in memory must gain" in said
    assert near > 1 or counts == 1


def test_a_given_model_starts_nothing(capsys, tmp_path):
    arguments = ["explain", "all_reduce", "--bytes", "64M", "--ranks", "8", "--links", "chain,alpha=10us"]
    assert cli.main([*arguments, "--json", str(tmp_path / "rows.json")]) == 0
    said = capsys.readouterr().out
    assert "* linear_pipeline_middle " in said, "on a chain fusing pays"
    assert '"auto" takes linear_pipeline_middle' in said and "measured" not in said
    assert len(json.loads((tmp_path / "rows.json").read_text())) == 8


@pytest.mark.parametrize(
    ("size", "said"), [("1M", "links get fewer messages"), ("3M", "predicted for 4 MiB: ")]
)
def test_what_the_taken_one_and_its_price_are_by(size, said, capsys):
    links = "switch:1Gbit,latency=0.1ms,overhead=20us"
    assert cli.main(["explain", "all_reduce", "--bytes", size, "--ranks", "3", "--links", links]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--nodes 2x2 --links switch", "4 ranks"),
        ("--nodes 0,0,1 --links switch", "3 ranks"),
        ("--links nodes:1Gbit,of=2x3", "6 ranks"),
        ("--links switch", "2 ranks"),
        ("--nodes 2x2 --ranks 4 --links nodes:1Gbit,of=2x2", "4 ranks"),
        ("--nodes 2x2 --ranks 2", "nodes '2x2' .* are of 4 ranks together, but there are 2"),
        ("--nodes 2x3 --links nodes:1Gbit,of=2x2", "nodes of 4 ranks together, but there are 6"),
        ("--nodes 1x1 --links switch", "--ranks 1: alone"),
        ("--nodes 40x40 --links switch", "--ranks 1600 must be at most 1024"),
        ("--nodes 70000x2", "nodes '70000x2' must be .* of at most 65536 ranks"),
    ],
)
def test_nodes_say_how_many_ranks(asked, said, capsys):
    cli.main(["explain", "all_reduce", *asked.split()])
    assert re.search(said, "".join(capsys.readouterr()))


@pytest.mark.processes
@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "scatter", "all_to_all"])
def test_every_collective_is_measured_rightly(collective, monkeypatch):
    seen = []

    def with_progress(steps, total, what):
        done = list(steps)
        seen.append((what, done.count(None) == total, [r.correct for r in done if r is not None]))
        return [result for result in done if result is not None]

    monkeypatch.setattr(explain, "with_progress", with_progress)
    monkeypatch.setattr(explain, "_measured", lambda ranks, nodes, codec: (SLOW, (0.0, 0.0)))
    assert cli.main(["explain", collective, "--bytes", "4K", "--ranks", "3"]) == 0
    ((what, counted, right),) = seen
    assert what == f"explain {collective}" and counted and right and all(right)


@pytest.mark.processes
def test_without_a_model_all_candidates_are_measured(capsys):
    assert cli.main(["explain", "broadcast", "--bytes", "64K", "--ranks", "2"]) == 0
    said = capsys.readouterr().out
    assert "measured" in said and said.count("\n") == 2 + 4 + 1


@pytest.mark.processes
@pytest.mark.parametrize("codec", ["int8", "fixed:0.01"])
def test_what_codes_is_measured_too(codec, tmp_path):
    file = tmp_path / "rows.json"
    asked = f"all_gather --bytes 64K --ranks 2 --codec {codec} --json {file}"
    assert cli.main(["explain", *asked.split()]) == 0
    rows = json.loads(file.read_text())
    assert {row["algorithm"]: row["codec"] for row in rows} == {
        "coded_ring": codec,
        "two_shot": codec,
        "direct": None,
        "ring": None,
    }
    assert all(row["measured_s"] > 0 for row in rows)


def test_bad_arguments_are_sentences(capsys):
    assert cli.main(["explain", "reduce", "--codec", "int8"]) == 2
    assert "reduce takes no codec; those that do: all_reduce, all_gather" in capsys.readouterr().err
    assert cli.main(["explain", "all_reduce", "--ranks", "1"]) == 2
    assert "alone there is nothing to choose" in capsys.readouterr().err
    assert cli.main(["explain", "all_shuffle", "--links", "switch"]) == 2
    assert "unknown collective 'all_shuffle'" in capsys.readouterr().err
    assert cli.main(["explain", "all_reduce", "--ranks", "1025", "--links", "switch"]) == 2
    assert "--ranks 1025 must be at most 1024" in capsys.readouterr().err
    assert cli.main(["explain", "all_reduce", "--links", "switch", "--json", "/nowhere/rows.json"]) == 2
    said = capsys.readouterr()
    assert "--json '/nowhere/rows.json' cannot be written" in said.err and not said.out
