"""`gpucomm reproduce compressed-collectives`: the forms, the rows, and small runs."""

from __future__ import annotations

import contextlib
import json
import sys

import jobs
import pytest
from reproduced import check, threads  # noqa: F401

from gpucomm import _core, cli
from gpucomm.errors import UnavailableError
from gpucomm.reproduce import command
from gpucomm.reproduce.cluster import Mpi
from gpucomm.reproduce.compressed_collectives import (
    between_hosts,
    collectives,
    errors,
    measuring,
    steps,
    training,
)
from gpucomm.reproduce.compressed_collectives.measuring import (
    CODED,
    COLLECTIVES,
    PER_HOP,
    TWO_SHOT,
    Measured,
    Way,
)
from gpucomm.reproduce.compressed_collectives.points import (
    HEADLINE_C,
    MIB,
    Point,
    headline,
    headline_rate,
    points,
)
from gpucomm.reproduce.hosts import Found
from gpucomm.reproduce.papers import find
from gpucomm.reproduce.run import Cell, Run

CLAIMS = ["ag_vs_dense", "ag_vs_per_hop", "rs_vs_dense", "rs_vs_per_hop"]
CLAIMS += ["fsdp_vs_dense", "fsdp_vs_per_hop", "fsdp_loss", "error_bound"]


def modelled(collective: str, ranks: int, c: float, *, slower: float = 1.0, alpha: float = 1e-9) -> Measured:
    """What would be measured where everything takes as long as the model says, ours `slower` times that."""
    cell = Cell("switch", 16 * MIB, 16 * MIB * 1e-8 / alpha, alpha)
    point = Point(ranks, cell, "int4", headline=True)
    per_hop = {PER_HOP: [(ranks - 1) * (1 + c) * point.wire_s]}
    found, ours = Measured(point, collective, [2 * c * point.wire_s], per_hop), Way("coded_ring", 4, True)
    times = {way: [found.model_s(way)] for way in (PER_HOP, TWO_SHOT, Way("ring"))}
    return found._replace(ways={ours: [slower * found.model_s(ours)], **times})


def test_the_claims():
    assert [claim.name for claim in find("compressed-collectives").claims] == CLAIMS


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("c", [0.1, 0.8, 1.1, 1.6])
def test_the_model_is_the_papers_form(ranks, c):
    found = modelled("all_gather", ranks, c)
    assert found.c == pytest.approx(c)
    ways, form = found.ways, (ranks - 1) * (1 + c) / (ranks - 1 + c)
    assert ways[PER_HOP][0] / found.model_s(Way("coded_ring", 1, True)) == pytest.approx(form, rel=1e-3)
    assert ways[Way("ring")][0] / (ranks - 1) == pytest.approx(found.point.part_bytes * 1e-8, rel=1e-3)


@pytest.mark.parametrize("c", [0.8, 0.95])
def test_the_goals_can_be_reached(c):
    """On links and processors that are exactly as the model has them."""
    for name, collective in (("ag", "all_gather"), ("rs", "reduce_scatter")):
        found = modelled(collective, 8, c)
        for what in (getattr(collectives, f"_{name.upper()}_{other}") for other in ("DENSE", "PER_HOP")):
            row = collectives._headline_row(Run(), what, found)
            assert row.holds, (what, row.ours)
            assert collectives._model_row(Run(), what, found).holds


@pytest.mark.parametrize("name", ["_AG_DENSE", "_AG_PER_HOP", "_RS_DENSE", "_RS_PER_HOP"])
def test_a_goal_that_is_missed_is_said(name):
    what = getattr(collectives, name)
    found = modelled(what.collective, 8, 0.9, slower=1.8)
    assert collectives._headline_row(Run(), what, found).holds is False
    assert collectives._model_row(Run(), what, found).holds is False


@pytest.mark.parametrize(("c", "said"), [(0.5, True), (0.9, False), (1.4, True)])
def test_a_c_that_is_not_the_headlines_is_said(c, said):
    row = collectives._headline_row(Run(), collectives._AG_DENSE, modelled("all_gather", 8, c))
    assert ("c is outside" in row.note) is said
    assert row.setting["codec_to_wire"] == pytest.approx(c)


def test_dense_is_the_fastest_dense():
    found = modelled("all_gather", 8, 0.9)
    found.ways[Way("direct")] = [0.9 * found.ways[Way("ring")][0]]
    assert found.dense == Way("direct")
    row = collectives._model_row(Run(), collectives._AG_DENSE, found)
    assert {str(found.ours), "direct", "ring", "ring_per_hop"} <= set(row.samples)


def test_into_how_many_segments_to_cut_is_tried(monkeypatch):
    """All ranks take what is the fastest in its best round."""
    seconds = {1: [3, 3, 3], 2: [9, 9, 2], 4: [4, 4, 4]}
    monkeypatch.setattr(measuring, "_slowest", lambda comm, call: call())
    rounds = {segments: iter(some) for segments, some in seconds.items()}
    ours = measuring._cut(None, CODED[0], 4 << 14, lambda way: lambda: next(rounds[way.segments]))
    assert ours == Way("coded_ring", 2, True)
    assert all(next(some, None) is None for some in rounds.values())
    assert measuring._cut(None, PER_HOP, 4 << 14, None) == PER_HOP


def test_points_are_what_is_asked_for():
    full = [headline(Run(), 200.0), *points(Run())]
    assert {point.ranks for point in full} == {4, 8}
    assert {point.cell.nbytes // MIB for point in full} == {1, 4, 16, 64}
    assert [point.headline for point in full] == [True] + [False] * (len(full) - 1)
    for point in full:
        assert point.cell.model.kind == "switch"
        assert point.part_bytes / point.coded_bytes == pytest.approx(8, rel=0.04)


@pytest.mark.parametrize("coding_s", [1e-3, 5e-3, 2e-2])
@pytest.mark.parametrize("power", [1.0, 2.0])
def test_the_headlines_links_follow_from_what_a_hop_takes(coding_s, power):
    """As fast as makes c what is wanted, whatever the machine."""

    def c_on(rate):
        tried.append(rate)
        return (coding_s / headline(Run(), rate).wire_s) ** power

    tried = []
    low, high = HEADLINE_C
    assert low < c_on(headline_rate(c_on)) < high
    assert len(tried) <= 5
    assert headline_rate(lambda rate: 0.0) <= 1000 and headline_rate(lambda rate: 1e6) >= 10


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_small_run(collective, tmp_path, monkeypatch):
    """All but the durations, which a run in a hurry gets wrong."""
    monkeypatch.setattr(command, "Run", lambda quick: Run(quick, hurry=128))
    names = [name for name in CLAIMS if name.startswith("ag" if collective == "all_gather" else "rs")]
    wanted = ["--claims", ",".join(names), "--json", str(tmp_path / "rows.json"), "--pictures", str(tmp_path)]
    assert cli.main(["reproduce", "compressed-collectives", "--quick", *wanted]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    check(rows)
    assert list(dict.fromkeys(row["claim"] for row in rows)) == names
    assert all(row["setting"]["codec_to_wire"] > 0 for row in rows)
    assert all("<svg" in (tmp_path / f"{name}.svg").read_text() for name in names)


def stepped(rate: float, c: float, *, faster: float = 1.0, coding: float = 0.04) -> steps.Steps:
    """Steps whose times are the model's: 0.1 s to compute, `coding` more, none hidden; ours by `faster`."""
    point = steps._point(Run(), rate, 256)
    wires = {name: point._replace(codec=codec).wire_s for name, codec in steps.CODECS.items()}
    per_hop = {name: [(steps.RANKS - 1) * (1 + c) * wire] for name, wire in wires.items()}
    found = steps.Steps(point, {}, per_hop, [1 << 20] + [point.cell.nbytes] * 4)
    times = {name: [0.1 + found._links_s(name)] for name in ("ring", "direct")}
    cores, links = 0.1 + coding, 0.1 + found._links_s(steps.CODED)
    coded = [max(cores, links) / faster]
    times |= {steps.COMPUTE: [0.1], steps.CODING: [cores], steps.CODED: coded, steps.AUTO: coded}
    return found._replace(times=times)


@pytest.mark.parametrize("coding", [0.04, 0.3])  # seconds: the links take longer, or the cores
@pytest.mark.parametrize(("faster", "holds"), [(1.0, True), (1.3, False), (0.8, False)])
def test_steps_are_held_to_the_model(faster, holds, coding):
    found = stepped(100, 0.5, faster=faster, coding=coding)
    assert found.c == pytest.approx(0.5)
    assert training._model_row(Run(), found).holds is holds
    row = training._model_row(Run(), found)
    assert row.setting["communication_share"] == pytest.approx(1 - 0.1 / found.times[found.dense][0])


def test_what_is_hidden_of_dense_messages_is_hidden_of_coded_ones():
    found = stepped(100, 0.5)
    hidden = 0.03
    without = (steps.COMPUTE, steps.CODING)
    times = {name: [t - hidden * (name not in without) for t in some] for name, some in found.times.items()}
    assert training._model_row(Run(), found._replace(times=times)).ours == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.72])
def test_the_links_follow_from_the_share_that_is_wanted(share):
    found = stepped(100, 0.5)
    there = stepped(found.rate_for(share, 100), 0.5)
    assert there.share == pytest.approx(share, abs=0.01)


def test_the_links_of_a_share_are_tried(monkeypatch):
    """Steps that compute for 1 s and of whose communication nothing is hidden, 100 MB a dense one."""
    tried = []

    def measured(run, rate, names):
        tried.append(rate)
        seconds = {name: 1 + 100 / rate for name in names} | {steps.COMPUTE: 1.0, steps.CODED: 1 + 25 / rate}
        per_hop = {name: [1.0] for name in steps.CODECS}
        times = {name: [some] for name, some in seconds.items()}
        return steps.Steps(steps._point(run, rate, 256), times, per_hop, [1, 1])

    monkeypatch.setattr(steps, "_measured", measured)
    outcome = training.fsdp_vs_dense(Run())
    shares = [row.setting["communication_share"] for row in outcome.rows if "off the model" in row.unit]
    assert shares == pytest.approx(list(steps.SHARES), abs=steps._NEAR)
    assert tried[:2] == [steps.SHARES[0.72], pytest.approx(100 * 0.28 / 0.72, rel=0.03)]
    assert len(tried) == 2 * len(steps.SHARES)  # the first links tell which, those are right at once
    assert [row.ours for row in outcome.rows if "auto" in row.unit] == [1.0] * len(steps.SHARES)


@pytest.mark.usefixtures("threads")
def test_errors_of_a_small_run(monkeypatch):
    monkeypatch.setattr(errors, "_COUNT", 1 << 12)
    rows = [row.as_json("source") for row in errors.error_bound(Run(quick=True)).rows]
    check(rows)
    assert {row["holds"] for row in rows} == {True, None}
    assert [row["unit"] for row in rows if row["goal"] is None] == ["RMS error of one coding, relative"]


@pytest.mark.usefixtures("threads")
def test_a_broken_bound_is_seen(monkeypatch):
    monkeypatch.setattr(errors, "_COUNT", 1 << 10)
    real = errors._bound
    monkeypatch.setattr(errors, "_bound", lambda *args: real(*args) / 2)
    row = errors._bound_row(Run(quick=True), 2)
    assert row.holds is False and row.ours > 10


def test_every_coded_plan_and_codec_is_held_to_its_bound():
    plans = {(some.collective, some.algorithm) for some in errors._settings()}
    coded = {name: about for name, about in _core.algorithms().items() if about["coded"]}
    assert plans == {(which, name) for name, about in coded.items() for which in about["collectives"]}
    assert {some.codec for some in errors._settings()} >= {"int4", "zfp:4", "mpc"}


def test_rows_between_hosts_say_what_was_measured(monkeypatch):
    def on_hosts(up, mpi, hosts, job, collective, nbytes, codec, coded, repeats):
        found = modelled(collective, hosts, 0.5)
        times = [[hosts * found.coding[0]], *found.ways.values()]
        spans = [[(0.0, s) for s in some] for some in times]
        return Found([[[list(way) for way in found.ways], spans]] * hosts, 1e-9, 1e-8)

    monkeypatch.setattr(between_hosts, "on_hosts", on_hosts)
    monkeypatch.setattr(between_hosts, "find_mpi", lambda: Mpi("mpich", "mpiexec", sys.executable))
    monkeypatch.setattr(between_hosts, "cluster", lambda hosts, rate: contextlib.nullcontext())
    run = Run()
    for what in (collectives._AG_DENSE, collectives._RS_PER_HOP):
        row = collectives._model_row(run, what, between_hosts.measured(run, what.collective))
        check([json.loads(json.dumps(row.as_json("source")))])
        assert row.how == "measured" and row.holds and "network namespaces" in row.setting["links"]
        assert row.setting["codec_to_wire"] == pytest.approx(0.5)


def test_what_can_not_be_between_hosts_is_said(monkeypatch):
    def none():
        raise UnavailableError("there is no mpiexec")

    monkeypatch.setattr(between_hosts, "find_mpi", none)
    run = Run()
    assert [between_hosts.measured(run, name) for name in COLLECTIVES] == [None, None]
    assert run.left_out == ["rows between hosts: there is no mpiexec"]


@pytest.mark.processes
def test_coded_calls_are_measured_between_hosts(monkeypatch):
    monkeypatch.setattr(between_hosts, "_HOSTS", 2)
    monkeypatch.setattr(between_hosts, "_NBYTES", 1 << 18)
    monkeypatch.setattr(between_hosts, "_REPEATS", 1)
    jobs.find("mpich")  # or skipped
    run = Run()
    found = between_hosts.measured(run, "all_gather")
    if run.left_out and ("root" in run.left_out[0] or "not installed" in run.left_out[0]):
        pytest.skip(run.left_out[0])
    assert run.left_out == []
    row = collectives._model_row(run, collectives._AG_DENSE, found)
    assert row.ours > 0 and row.setting["codec_to_wire"] > -1  # so short a message tells no more
