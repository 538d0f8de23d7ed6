"""`gpucomm reproduce`: what its rows say, that they say it honestly, and small runs of it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time

import jobs
import pytest
from reproduced import SETTING, check, threads  # noqa: F401

from gpucomm import _core, cli, cost
from gpucomm.errors import UnavailableError
from gpucomm.reproduce import command
from gpucomm.reproduce.claims import Row, holds, setting
from gpucomm.reproduce.cluster import Mpi
from gpucomm.reproduce.linear_pipelining import between_hosts, cells, fusing, segments
from gpucomm.reproduce.papers import PAPERS, find
from gpucomm.reproduce.pictures import draw
from gpucomm.reproduce.run import Call, Cell, Run

KEYS = ["claim", "source", "paper", "ours", "unit", "how", "goal", "relation", "setting", "samples", "holds"]
CLAIMS = [
    "lp_invariant",
    "mst_log_p",
    "lp_vs_be_broadcast",
    "fused_vs_unfused_chain",
    "fused_vs_ring_chain",
    "switch_auto_not_fused",
    "segment_optimum",
    "bsp_sgd_step",
]


@pytest.mark.parametrize(
    ("ours", "relation", "goal", "expected"),
    [
        (1.0, "<=", 1.0, True),
        (1.1, "<=", 1.0, False),
        (1.0, ">=", 1.0, True),
        (0.9, ">=", 1.0, False),
        (0.0, "==", 0.0, True),
        (1e-9, "==", 0.0, False),
        (1.0, ">=", None, None),
    ],
)
def test_holds(ours, relation, goal, expected):
    assert holds(ours, relation, goal) is expected
    under = setting(ranks=8, nbytes=64, links="switch", x=1.0, repeats=1)
    row = Row("c", None, ours, "ratio", "counted", relation, goal, under, {"a": (1.0,)}, "n")
    assert row.holds is expected
    written = row.as_json("a source")
    assert list(written) == [*KEYS, "note"]
    assert (written["holds"], written["samples"]) == (expected, {"a": [1.0]})
    assert set(written["setting"]) == SETTING


def test_the_claims_of_each_paper():
    assert [claim.name for claim in find("linear-pipelining").claims] == CLAIMS
    for name in PAPERS:
        paper = find(name)
        assert paper.name == name
        for claim in paper.claims:
            assert claim.says.endswith(".")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing"], "unknown paper 'nothing'; known: linear-pipelining, compressed-collectives"),
        (["linear-pipelining", "--claims", "mst"], "unknown claim 'mst' of linear-pipelining; known: lp_inv"),
        (
            ["linear-pipelining", "--json", "/nowhere/rows.json"],
            "--json '/nowhere/rows.json' cannot be written",
        ),
        (
            ["linear-pipelining", "--claims", ""],
            "--claims '' must name at least one of linear-pipelining: lp_",
        ),
        (["linear-pipelining", "--claims", " ,"], "--claims ' ,' must name at least one"),
    ],
)
def test_bad_arguments_are_sentences(arguments, sentence, capsys):
    assert cli.main(["reproduce", *arguments]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("place", ["file", "file/inside", "/proc/x"])
def test_pictures_need_a_folder_before_the_work(place, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "work", lambda *_: pytest.fail("it works first"))
    (tmp_path / "file").touch()
    where = str(tmp_path / place)
    assert cli.main(["reproduce", "linear-pipelining", "--quick", "--pictures", where]) == 2
    assert f"--pictures {where!r} cannot be written into: [Errno " in capsys.readouterr().err


def test_the_model_is_the_papers():
    """Figures that were worked out by hand from the closed forms, p = 8."""
    for x, fused_over_unfused in ((54, 0.625), (200, 0.572), (1074, 0.533)):
        cell = Cell("chain", 64 << 20, x, 1e-4)
        fused, unfused = (
            cells.pipeline("all_reduce", name, 8, cell).model_s(cell, 8)
            for name in ("linear_pipeline", "linear_pipeline_unfused")
        )
        assert fused / unfused == pytest.approx(fused_over_unfused, abs=0.002)
    cell = Cell("chain", 64 << 20, 500, 1e-4)  # where "fused" is what meets in the middle
    assert fusing._model(cell, 8, "linear_pipeline") == pytest.approx(1.0785, abs=0.002)
    assert fusing._model(cell, 8, "ring") == pytest.approx(1.422, abs=0.002)
    cell = Cell("switch", 64 << 20, 5000, 1e-4)
    lp = cells.pipeline("broadcast", "linear_pipeline", 8, cell).model_s(cell, 8)
    assert Call("broadcast", "bidirectional_exchange").model_s(cell, 8) / lp == pytest.approx(
        1.637, abs=0.002
    )


@pytest.mark.parametrize("quick", [True, False])
def test_cells_have_the_x_that_they_say(quick):
    run = Run(quick)
    for x in cells._QUICK if quick else cells._FULL:
        (cell,) = cells.cells(run, "chain", (x,), (x,))
        assert cell.model.kind == "chain"
        assert cell.nbytes * cell.model.beta / cell.model.alpha == pytest.approx(cell.x) == pytest.approx(x)
        assert x * cell.alpha >= 0.02  # long enough for a machine that is late
        assert 8 / cell.model.beta < 1e9  # bytes a second of all links: far from what memory does


def test_segments_around_the_best_stay_within_their_factor():
    for best in (1, 2, 17, 18, 85):
        for quick in (True, False):
            tried = segments._around(best, quick)
            assert best in tried and tried == sorted(set(tried))
            near = [m for m in tried if 0.99 * best / 2 <= m <= 2.01 * best]
            assert all(max(m / best, best / m) <= 2 for m in near)


@pytest.mark.usefixtures("threads")
def test_a_small_run(tmp_path, monkeypatch, capsys):
    """All but the durations, which a run in a hurry gets wrong."""
    monkeypatch.setattr(command, "Run", lambda quick: Run(quick, hurry=20))
    names = "mst_log_p,switch_auto_not_fused,segment_optimum"
    arguments = ["--claims", names, "--json", str(tmp_path / "rows.json"), "--pictures", str(tmp_path)]
    assert cli.main(["reproduce", "linear-pipelining", "--quick", "--samples", *arguments]) == 0
    shown = capsys.readouterr().out
    rows = json.loads((tmp_path / "rows.json").read_text())
    check(rows)
    assert list(dict.fromkeys(row["claim"] for row in rows)) == names.split(",")
    assert {row["how"] for row in rows} == {"emulated", "simulated", "counted"}
    assert [row["holds"] for row in rows if row["how"] != "emulated"] == [True, True]
    for name in names.split(","):
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()
        assert f"\n{name}: " in shown and f"\n{name}  " in shown  # its samples, and its line of the table


@pytest.mark.processes
def test_times_are_from_the_first_start_to_the_last_end():
    cell, call = Cell("switch", 1 << 16, 10, 1e-3), Call("broadcast", "linear_pipeline", 4)
    (times,) = Run(quick=True, hurry=2).times(cell, 3, call)
    assert len(times) == 3
    assert min(times) > 0.99 * call.model_s(cell, 3)  # emulated links are never faster


@pytest.mark.usefixtures("threads")
def test_layerwise_training_has_equal_losses_every_way(tmp_path):
    (claim,) = [claim for claim in find("linear-pipelining").claims if claim.name == "bsp_sgd_step"]
    outcome = claim.work(Run(quick=True, hurry=12))
    rows = [row.as_json("source") for row in outcome.rows]
    check(rows)
    by_unit = {row["unit"]: row for row in rows}
    assert by_unit["relative"]["holds"] and by_unit["steps"]["holds"]
    losses = by_unit["relative"]["samples"]["linear_pipeline"]
    assert losses[-1] < losses[0]
    draw(outcome.picture, tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size > 10_000


def test_what_is_suspect_is_measured_once_more(monkeypatch):
    cell, call = Cell("switch", 1 << 20, 54, 1e-3), Call("broadcast", "linear_pipeline")
    model = call.model_s(cell, 2)
    asked = []

    def slow_then_right(self, cell, ranks, job, *args):
        asked.append(ranks)
        took = model * (2.0 if len(asked) == 1 else 1.01)
        return [[[(5.0 + rank / 1e4, 5.0 + took)] * 3] for rank in range(ranks)]

    monkeypatch.setattr(Run, "on_ranks", slow_then_right)
    run = Run(quick=True)
    assert run.times(cell, 2, call) == [pytest.approx([2 * model] * 3 + [1.01 * model] * 3)]
    assert run.times(cell, 2, call)[0] and asked == [2, 2]  # and not again when it is known
    run._again_s = 0.0
    assert len(run.times(cell, 3, call)[0]) == 3


@pytest.mark.timing
@pytest.mark.processes
def test_the_quick_run_ends_within_50_s_and_its_goals_hold(tmp_path):
    begin = time.monotonic()
    arguments = ["reproduce", "linear-pipelining", "--quick", "--json", str(tmp_path / "rows.json")]
    subprocess.run([sys.executable, "-m", "gpucomm", *arguments], check=True, timeout=110)
    assert time.monotonic() - begin < 50
    rows = json.loads((tmp_path / "rows.json").read_text())
    check(rows)
    assert list(dict.fromkeys(row["claim"] for row in rows)) == CLAIMS
    assert [row for row in rows if row["holds"] is False] == []


def test_simulated_rows_reach_2048_ranks():
    from gpucomm.reproduce.linear_pipelining import invariance

    rows = [row.as_json("source") for row in invariance._far_pipelines(Run(quick=True))]
    check(rows)
    assert max(row["setting"]["ranks"] for row in rows) == 2048
    assert [row["holds"] for row in rows] == [True, True, None, True]
    assert cost.best_segments(2048, 1 << 20, Cell("switch", 1 << 20, 1200, 1e-4).model) == 1567


ROWS_BETWEEN_HOSTS = ["lp_invariant"] * 2 + ["mst_log_p"] * 3 + ["lp_vs_be_broadcast"] * 2
ROWS_BETWEEN_HOSTS += ["switch_auto_not_fused"] * 4


def rows_between_hosts(run: Run) -> list[Row]:
    of = between_hosts
    return of.pipeline_rows(run) + of.tree_rows(run) + of.exchange_rows(run) + of.fusing_rows(run)


def test_what_can_not_be_between_hosts_is_said_once(monkeypatch):
    def none():
        raise UnavailableError("there is no mpiexec")

    monkeypatch.setattr(between_hosts, "find_mpi", none)
    run = Run()
    assert rows_between_hosts(run) == []
    assert run.left_out == ["rows between hosts: there is no mpiexec"]
    quick = Run(quick=True)
    assert rows_between_hosts(quick) == [] and quick.left_out == []


def test_rows_between_hosts_say_what_was_measured(monkeypatch):
    """On links whose times are the model's, every goal is reached."""
    model, nbytes = _core.Links("switch", alpha=50e-6, beta=8e-9), between_hosts._NBYTES

    def job(cluster, mpi, hosts):
        times = {}
        for call in between_hosts._CALLS:
            how = {"world": hosts, "nbytes": nbytes, "links": model, "segments": call.segments}
            times[call] = [cost.cost(call.collective, call.algorithm, **how)] * 4
        return times, nbytes * model.beta / model.alpha

    monkeypatch.setattr(between_hosts, "_job", job)
    monkeypatch.setattr(between_hosts, "find_mpi", lambda: Mpi("mpich", "mpiexec", sys.executable))
    monkeypatch.setattr(between_hosts, "cluster", lambda hosts, rate: contextlib.nullcontext())
    found = rows_between_hosts(Run())
    rows = [row.as_json("source") for row in found]
    check(rows)
    assert [row["claim"] for row in rows] == ROWS_BETWEEN_HOSTS
    assert {row["how"] for row in rows} == {"measured"}
    assert [row["holds"] for row in rows] == [True] * 5 + [None] * 2 + [True] * 2 + [None] * 2
    assert rows[0]["ours"] == pytest.approx(1.031, abs=0.01)
    assert rows[5]["ours"] == pytest.approx(1.5, abs=0.1)


@pytest.mark.processes
def test_calls_are_measured_between_hosts(monkeypatch):
    monkeypatch.setattr(between_hosts, "_HOSTS", (2, 3))
    monkeypatch.setattr(between_hosts, "_NBYTES", 1 << 18)
    monkeypatch.setattr(between_hosts, "_REPEATS", 1)
    jobs.find("mpich")  # or skipped
    run = Run()
    found = rows_between_hosts(run)
    if run.left_out and ("root" in run.left_out[0] or "not installed" in run.left_out[0]):
        pytest.skip(run.left_out[0])
    assert run.left_out == []
    assert [row.claim for row in found] == ROWS_BETWEEN_HOSTS
    check([json.loads(json.dumps(row.as_json("source"))) for row in found])
    for row in found:
        for times in row.samples.values():
            assert len(times) == 1 and 0 < times[0] < 10
