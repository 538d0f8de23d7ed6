"""`gpucomm.probe`: who measures with whom, what comes out, and what is kept of it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from ranks import outcomes_of, run_ranks

import gpucomm
from gpucomm import Communicator, _core, cli, doctor, probe
from gpucomm.errors import CollectiveTimeoutError, InvalidArgumentError, PeerLostError
from gpucomm.launch.asked import parse_nodes
from gpucomm.probe import cache, survey
from gpucomm.probe.figures import Figures
from gpucomm.probe.rounds import MOST_ROUNDS, plan_rounds

MATRICES = ("alpha", "latency", "beta")
SLOW = _core.Links("switch", alpha=50e-6, beta=8e-9, lambda_=0.5e-3)  # 1 Gbit/s


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path) -> Path:
    """An empty cache."""
    monkeypatch.setenv("GPUCOMM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def many_cores(monkeypatch) -> None:
    """So that pairs are measured, however few cores there are."""
    monkeypatch.setattr(survey, "_cores", lambda told: 64)


def figures(alpha, nodes=None, **more) -> Figures:
    """Figures whose latency and beta follow alpha."""
    alpha = np.array(alpha, np.float64)
    return Figures(
        transport="shm",
        nodes=tuple(nodes or [0] * len(alpha)),
        alpha=alpha,
        latency=alpha * 2,
        beta=alpha * 1e-3,
        rates={"reduce": 1e-11},
        **more,
    )


def even(world: int, value: float = 1e-6) -> np.ndarray:
    return np.where(np.eye(world, dtype=bool), np.nan, value)


@pytest.mark.parametrize("world", range(2, 17))
def test_everyone_meets_everyone_once(world):
    rounds = plan_rounds([0] * world, ())
    assert len(rounds) == world - 1 + world % 2
    for groups in rounds:
        ranks = list(itertools.chain(*groups))
        assert len(ranks) == len(set(ranks)), "a rank cannot be in two places at once"
    met = sorted(itertools.chain(*rounds))
    assert met == list(itertools.combinations(range(world), 2))


def test_large_worlds_meet_as_many_as_time_allows():
    rounds = plan_rounds([0] * 40, ())
    assert len(rounds) == MOST_ROUNDS
    met = list(itertools.chain(*rounds))
    assert len(met) == len(set(met)) == 20 * MOST_ROUNDS


@pytest.mark.parametrize(
    ("nodes", "together", "expected"),
    [
        ("0,0,0", {0}, [[(0, 1, 2)]]),
        ("0,1,0,1", (), [[(0, 1)], [(0, 2), (1, 3)]]),
        ("0,0,0,1", {0}, [[(0, 3)], [(0, 1, 2)]]),
        ("0,1,2", (), [[(0, 2)], [(0, 1)], [(1, 2)]]),
        ("0,0,1", {1}, [[(0, 2)], [(0, 1)]]),
    ],
)
def test_nodes_meet_by_their_first_ranks(nodes, together, expected):
    found = plan_rounds(parse_nodes(nodes, nodes.count(",") + 1), together)
    assert sorted(map(sorted, found)) == sorted(map(sorted, expected))


def test_a_slow_port_counts_and_one_odd_pair_does_not():
    odd = even(4)
    odd[0, 1] = odd[1, 0] = 9e-6
    assert figures(odd).links.alpha == 1e-6
    assert "pairs inside a node differ by 9.0 times; the slowest: [0, 1]" in str(figures(odd))
    port = even(4)
    port[3, :3] = port[:3, 3] = 9e-6
    links = figures(port).links
    assert (links.kind, links.alpha, links.lambda_, links.gamma) == ("switch", 9e-6, 18e-6, 1e-11)
    assert links.beta == 9e-6 * 1e-3
    assert "differ" not in str(figures(even(4)))


def test_links_of_several_nodes():
    nodes = [0, 0, 1, 2]
    table = np.array([[1e-6 if a == b else 5e-6 for b in nodes] for a in nodes])
    np.fill_diagonal(table, np.nan)
    links = figures(table, nodes).links
    assert (links.kind, list(links.nodes)) == ("nodes", nodes)
    assert (links.alpha, links.lambda_, links.beta) == (5e-6, 10e-6, 5e-6 * 1e-3)
    assert (links.inner_alpha, links.inner_lambda, links.inner_beta) == (1e-6, 2e-6, 1e-6 * 1e-3)
    assert [line.split()[0] for line in str(figures(table, nodes)).splitlines()[-2:]] == ["across", "inside"]
    alone = figures(even(2, 5e-6), [0, 1]).links
    assert (alone.alpha, alone.inner_alpha, alone.inner_beta) == (5e-6, 0, 0)


def test_pairs_that_have_not_met_do_not_count():
    table = even(20)
    table[0, 1] = table[1, 0] = np.nan
    assert figures(table).links.alpha == 1e-6
    assert str(figures(table)).count("\n") == 2, "no lines of 190 pairs"


def test_json_is_exact():
    table = even(3, 1 / 3e6)
    table[0, 2] = table[2, 0] = np.nan
    before = figures(table, [0, 0, 1], together=(0,))
    after = Figures.from_json(before.to_json())
    for field in dataclasses.fields(Figures):
        if field.name in MATRICES:
            np.testing.assert_array_equal(getattr(after, field.name), getattr(before, field.name))
        else:
            assert getattr(after, field.name) == getattr(before, field.name), field.name


GOOD = json.loads(figures(even(2)).to_json())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "[" * 100_000,
        json.dumps(GOOD | {"alpha": [[None, -1.0], [1.0, None]]}),
        json.dumps(GOOD | {"beta": [[None, float("inf")], [1.0, None]]}),
        json.dumps(GOOD | {"beta": [[None, None], [None, None]]}),
        json.dumps(GOOD | {"latency": [[None, 1.0]]}),
        json.dumps(GOOD | {"nodes": [0, 0, 0]}),
        json.dumps(GOOD | {"nodes": 2}),
        json.dumps(GOOD | {"nodes": [0, float("inf")]}),
        json.dumps(GOOD | {"together": [float("inf")]}),
        json.dumps(GOOD | {"alpha": [[None, 10**400], [1.0, None]]}),
        json.dumps(GOOD | {"codecs": {"no:such": [1e-9, 1e-9]}}),
        json.dumps(GOOD | {"codecs": {"\ud800": [1e-9, 1e-9]}}),
        json.dumps(GOOD | {"rates": {}}),
        json.dumps(GOOD | {"codecs": {"int8": [1e-9]}}),
        json.dumps(GOOD | {"measured_at": "yesterday"}),
        json.dumps({key: value for key, value in GOOD.items() if key != "together"}),
    ],
)
def test_what_is_no_figures_is_refused(text):
    with pytest.raises(InvalidArgumentError, match="these are no figures of links"):
        Figures.from_json(text)


def check(found: Figures, world: int) -> None:
    """Every pair has figures, the same both ways."""
    apart = ~np.eye(world, dtype=bool)
    for name in MATRICES:
        matrix = getattr(found, name)
        np.testing.assert_array_equal(matrix, matrix.T)
        assert np.isnan(np.diagonal(matrix)).all()
        assert (matrix[apart] >= 0).all()
    assert (found.alpha[apart] > 0).all() and (found.beta[apart] > 0).all()
    assert found.rates["reduce"] > 0


@pytest.mark.parametrize("crowded", [True, False])
@pytest.mark.parametrize(
    ("world", "nodes"), [(2, ""), (3, ""), (4, ""), (4, "2x2"), (3, "0,0,1"), (2, "0,1")]
)
def test_all_ranks_have_the_same_figures(world, nodes, crowded, monkeypatch):
    monkeypatch.setattr(survey, "_cores", lambda told: 1 if crowded else 64)
    where = list(parse_nodes(nodes, world))

    def job(comm):
        return probe.measure(comm), comm.links, comm.nodes

    outcomes = run_ranks(world, job, nodes=where)
    found, links, _ = outcomes[0]
    assert {other.to_json() for other, _, _ in outcomes} == {found.to_json()}
    check(found, world)
    own = where or [0] * world
    assert found.together == (tuple(n for n in set(own) if own.count(n) > 1) if crowded else ())
    assert links.kind == found.links.kind == ("nodes" if nodes else "switch")
    assert (links.alpha, links.beta, links.gamma) == (
        found.links.alpha,
        found.links.beta,
        found.rates["reduce"],
    )


def test_pairs_of_two_nodes_have_what_their_first_ranks_measured(many_cores):
    found = run_ranks(4, probe.measure, nodes=[0, 0, 1, 1])[0]
    assert found.beta[0, 2] == found.beta[0, 3] == found.beta[1, 2] == found.beta[1, 3]
    assert len({found.beta[0, 1], found.beta[2, 3], found.beta[0, 2]}) == 3


def test_one_rank_has_no_links():
    with pytest.raises(InvalidArgumentError, match="no links to measure"):
        run_ranks(1, probe.measure)
    with pytest.raises(InvalidArgumentError, match="comm must be a communicator, got None"):
        probe.measure(None)
    with pytest.raises(InvalidArgumentError, match="rank 0 of 2 is not in the group"):
        probe.measure(gpucomm.NonMember(0, 2, [1]))


def test_a_rank_that_leaves_is_an_error_on_the_other():
    begin = time.monotonic()
    outcomes = outcomes_of(2, lambda comm: probe.measure(comm, 0.2) if comm.rank else comm.rank, timeout=20)
    assert isinstance(outcomes[1], PeerLostError)
    assert time.monotonic() - begin < 10


def test_it_waits_no_longer_than_told():
    """Both are there, but one does something else for longer than the other waits."""
    together = threading.Barrier(2, timeout=20)

    def job(comm):
        if comm.rank == 0:
            try:
                return probe.measure(comm, 0.2)
            finally:
                together.wait()
        together.wait()
        return None

    assert isinstance(outcomes_of(2, job)[0], CollectiveTimeoutError)


def test_all_of_it_waits_no_longer_than_told(monkeypatch):
    """Both have come, but one measures for longer than the other waits."""
    over = threading.Event()
    begun = itertools.count()
    monkeypatch.setattr(survey, "_reducing", lambda: next(begun) and float(over.wait(20)))

    def job(comm):
        try:
            return probe.measure(comm, 0.2, fresh=True)
        except CollectiveTimeoutError as error:
            return str(error)
        finally:
            over.set()

    assert "timed out after 0.2 s" in str(outcomes_of(2, job, timeout=20))


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def both(world: int = 2, **how) -> list[Figures]:
    return run_ranks(world, probe.measure, **how)


def test_the_second_world_takes_what_the_first_has_measured(folder):
    (first, _), (second, other) = both(), both()
    assert first.to_json() == second.to_json() == other.to_json()
    assert len(files(folder)) == 1 and files(folder)[0].stat().st_mode & 0o077 == 0
    for different in (both(3)[0], both(2, nodes=[0, 1])[0]):
        assert different.measured_at > first.measured_at
    assert len(files(folder)) == 3
    assert all(file.suffix == ".json" for file in files(folder)), "no draft is left"


def test_fresh_measures_again_and_puts_it_there():
    first = both()[0]
    fresh = run_ranks(2, lambda comm: probe.measure(comm, fresh=True))[0]
    assert fresh.measured_at > first.measured_at
    assert both()[0].to_json() == fresh.to_json()


def test_codecs_are_measured_once(folder):
    def job(comm, *specs):
        found = probe.measure(comm, codecs=specs)
        if comm.rank == 0:  # alone: what "auto" has to know of them it has been told
            for spec in found.codecs:
                comm._predict(np.ones(1000, np.float32), spec, 1.0)
        comm.barrier()
        return found.codecs

    first, other = run_ranks(2, lambda comm: job(comm, "int8", "mpc"))
    assert first == other and list(first) == ["int8", "mpc"]
    assert all(0 < seconds < 1e-6 for speeds in first.values() for seconds in speeds)
    assert run_ranks(2, job) == [first] * 2
    more = run_ranks(2, lambda comm: job(comm, "int8", "bf16"))[1]
    assert list(more) == ["int8", "mpc", "bf16"] and more.items() > first.items()
    assert run_ranks(2, job)[0] == more and len(files(folder)) == 1


def test_auto_takes_it_from_there(folder):
    def job(comm):
        comm.all_reduce(np.ones(100, np.float32))
        return comm.links.alpha, comm.links.beta

    first = run_ranks(2, job)
    assert len(files(folder)) == 1
    assert run_ranks(2, job) == first == [first[0]] * 2


def test_a_machine_that_can_not_be_told_is_never_taken_for_another(monkeypatch, folder):
    monkeypatch.setattr(survey, "Path", lambda name: folder / "nothing")
    assert both()[0].measured_at < both()[0].measured_at


def test_other_processors_are_other_hosts(monkeypatch):
    first = both()[0]
    monkeypatch.setattr(survey, "cgroup_quota", lambda: 1.5)
    assert both()[0].measured_at > first.measured_at


@pytest.mark.parametrize("damage", ["", "{}", "\0" * 100, "other", "codec"])
def test_a_damaged_file_is_a_warning_and_measured_again(damage, folder, caplog):
    first = both()[0]
    (file,) = files(folder)
    unknown = json.dumps(json.loads(file.read_text()) | {"codecs": {"no:such": [1e-9, 1e-9]}})
    file.write_text({"other": figures(even(2)).to_json(), "codec": unknown}.get(damage, damage))
    with caplog.at_level(logging.WARNING, "gpucomm"):
        second, other = both()
    assert [record.getMessage() for record in caplog.records] == [caplog.records[0].getMessage()]
    assert f"{file} is not used, the links are measured again: " in caplog.text
    assert second.to_json() == other.to_json() and second.measured_at > first.measured_at
    assert Figures.from_json(file.read_text()).to_json() == second.to_json()


def test_bytes_that_are_no_text_are_a_damaged_file(folder, caplog):
    both()
    (file,) = files(folder)
    file.write_bytes(b"\xff\xfe\x80")
    both()
    assert "is not used" in caplog.text


def test_what_is_older_than_a_day_is_measured_again_and_removed(folder):
    both(3)
    first = both()[0]
    for file in files(folder):
        found = Figures.from_json(file.read_text())
        old = found.measured_at - cache.MAX_AGE_S - 1
        file.write_text(dataclasses.replace(found, measured_at=old).to_json())
        os.utime(file, (old, old))
    draft = file.with_suffix(".abc_1234.draft")  # of a process that was killed
    draft.touch()
    os.utime(draft, (old, old))
    assert both()[0].measured_at > first.measured_at
    assert len(files(folder)) == 1, "that of three ranks cannot be of use any more"


def test_off_keeps_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("GPUCOMM_CACHE", "off")
    assert both()[0].measured_at < both()[0].measured_at
    assert files(tmp_path) == []


def test_a_folder_that_can_not_be_made_is_a_warning_once(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").touch()
    where = tmp_path / "file" / "cache"
    monkeypatch.setenv("GPUCOMM_CACHE", str(where))
    with caplog.at_level(logging.WARNING, "gpucomm"):
        for _ in range(2):
            check(both()[0], 2)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"not kept in {where}, so each job measures anew: Not a directory" in record.getMessage()
    (finding,) = doctor._LOOKS["measured links"]("measured links")
    assert not finding.on and finding.why.startswith(f"{where} cannot be written, so what is measured is not")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"GPUCOMM_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, Path("/b/gpucomm")),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, Path("/c/.cache/gpucomm")),
        ({"HOME": "/c"}, Path("/c/.cache/gpucomm")),
        ({"GPUCOMM_CACHE": "off", "HOME": "/c"}, None),
    ],
)
def test_where_it_is_kept(environ, expected, monkeypatch):
    for name in ("GPUCOMM_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cache.folder() == expected


@pytest.mark.processes
def test_only_rank_0_looks():
    """Rank 1 has a cache of its own, with other figures."""

    def job(comm, folder):
        import os

        from gpucomm import probe

        os.environ["GPUCOMM_CACHE"] = f"{folder}{comm.rank}"
        found = [probe.measure(comm).to_json()]
        os.environ["GPUCOMM_CACHE"] = "off" if comm.rank else f"{folder}0"
        return [*found, probe.measure(comm).to_json()]

    with gpucomm.local(2) as world:
        first, second = world.run(job, os.environ["GPUCOMM_CACHE"])
    assert first == second and first[0] == first[1]
    assert not Path(os.environ["GPUCOMM_CACHE"] + "1").exists()


def test_emulated_links_are_given(folder, many_cores):
    def job(comm):
        given = probe.measure(comm)
        return given, probe.measure(comm, fresh=True), comm.links

    given, measured, links = run_ranks(3, job, links=SLOW)[0]
    apart = ~np.eye(3, dtype=bool)
    for name, value in (("alpha", SLOW.alpha), ("latency", SLOW.lambda_), ("beta", SLOW.beta)):
        assert (getattr(given, name)[apart] == value).all()
        assert (getattr(measured, name)[apart] != value).any()
    assert (links.alpha, links.beta) == (SLOW.alpha, SLOW.beta), "a measurement changes nothing here"
    assert files(folder) == []


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ("switch:1Gbit,rank2=100Mbit", {(0, 1): 8e-9, (0, 2): 80e-9, (1, 3): 8e-9}),
        ("chain:1Gbit,link1=100Mbit", {(0, 1): 8e-9, (0, 3): 80e-9, (2, 3): 8e-9}),
        ("nodes:1Gbit,of=2x2,node1=100Mbit", {(0, 1): 0.0, (0, 2): 80e-9, (2, 3): 0.0}),
    ],
)
def test_given_links_may_differ(links, expected):
    with gpucomm.local(4, threads=True, links=links) as world:
        found = world.run(probe.measure)[0]
    for (a, b), beta in expected.items():
        assert found.beta[a, b] == found.beta[b, a] == pytest.approx(beta)


@pytest.mark.timing
@pytest.mark.parametrize("world", [2, 3, 4])
def test_figures_of_emulated_links_are_those_that_were_asked_for(world):
    found = [run_ranks(world, lambda comm: probe.measure(comm, fresh=True), links=SLOW)[0] for _ in range(3)]
    apart = ~np.eye(world, dtype=bool)
    for name, value in (("alpha", SLOW.alpha), ("latency", SLOW.lambda_), ("beta", SLOW.beta)):
        median = np.median([getattr(one, name) for one in found], axis=0)
        np.testing.assert_allclose(median[apart], value, rtol=0.1)


@pytest.mark.timing
@pytest.mark.processes
@pytest.mark.parametrize("links", [None, "switch:1Gbit,overhead=50us,latency=0.5ms"])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_it_takes_less_than_a_second(world, links):
    def job(comm):
        import time

        from gpucomm import probe

        begin = time.monotonic()
        probe.measure(comm, fresh=True)
        return time.monotonic() - begin

    with gpucomm.local(world, links=links) as ranks:
        assert max(ranks.run(job)) < 1


@pytest.mark.processes
def test_the_command_shows_them(capsys, folder):
    assert cli.main(["probe", "-n", "2"]) == 0
    said = capsys.readouterr().out
    assert (
        "\nint8: encodes " in said
        and "2 ranks, shm; reduce " in said
        and '\n"auto" ' in said
        and "\n0-1 " in said
    )
    assert cli.main(["probe", "-n", "2", "--json"]) == 0
    kept = capsys.readouterr().out
    check(Figures.from_json(kept), 2)
    assert cli.main(["probe", "-n", "2", "--json", "--fresh"]) == 0
    assert Figures.from_json(capsys.readouterr().out).measured_at > Figures.from_json(kept).measured_at
    assert len(files(folder)) == 1
    assert cli.main(["probe", "-n", "2", "--links", "switch:100Mbit"]) == 0
    assert "emulated(shm)" in capsys.readouterr().out


@pytest.mark.processes
def test_the_command_takes_the_ranks_of_a_launcher():
    command = [sys.executable, "-m", "gpucomm", "run", "-n", "2", "-m", "gpucomm", "probe", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    check(Figures.from_json(done.stdout), 2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "no launcher has started several ranks: give their number, as in -n 4"),
        (["-n", "1"], "-n 1: links are between ranks"),
        (["-n", "2", "--links", "switch:fast"], "'fast' must be a number"),
    ],
)
def test_bad_arguments_are_sentences(arguments, sentence, capsys):
    assert cli.main(["probe", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_the_doctor_says_what_is_kept(monkeypatch, folder):
    def look() -> doctor.Finding:
        (finding,) = doctor._LOOKS["measured links"]("measured links")
        return finding

    assert look().why.startswith(f"none in {folder} yet")
    both()
    assert look().why.startswith(f"1 in {folder}, the last, links-") and "0.0 hours ago" in look().why
    monkeypatch.setenv("GPUCOMM_CACHE", "off")
    assert not look().on


def test_ranks_of_another_version_have_other_figures(monkeypatch, folder):
    both()
    monkeypatch.setattr(_core, "version", "0.0.0")
    both()
    assert len(files(folder)) == 2


def test_what_is_frozen_stays_so():
    def job(comm):
        comm.freeze()
        before = comm.links.beta
        assert probe.measure(comm).links.beta > 0
        return comm.links.beta == before

    assert run_ranks(2, job) == [True, True]


def test_a_communicator_stays_usable_after_a_measurement():
    def job(comm: Communicator):
        probe.measure(comm, fresh=True)
        return float(comm.all_reduce(np.ones(1))[0])

    assert run_ranks(3, job) == [3.0] * 3
