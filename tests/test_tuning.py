"""What algorithm="auto" learns: alike on all ranks, from agreed times, to be replayed or switched off."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from ranks import outcomes_of, run_ranks

from gpucomm import Communicator, _core, init, local
from gpucomm.errors import InvalidArgumentError, MismatchError
from gpucomm.links import parse_emulated

WORLD = 3
MODEL = _core.Links("switch", alpha=1e-2, beta=1e-10)  # calls count as long ones: short bursts
ENOUGH = 90  # calls of one kind until one candidate is left


def reduce_often(comm: Communicator, calls: int = ENOUGH, elements: int = 1000) -> list[bytes]:
    """The bits of each result; every rank adds other fractions, so that the order of the sum shows."""
    results = []
    for call in range(calls):
        x = np.random.default_rng(100 * comm.rank + call).standard_normal(elements).astype(np.float32)
        comm.all_reduce(x)
        results.append(x.tobytes())
    return results


def algorithms(comm: Communicator) -> list[str]:
    """What the last calls of this rank were."""
    return [row["call"] for row in comm.flight_log() if row["rank"] == comm.rank]


def learnt(comm: Communicator) -> Any:
    comm.set_links(MODEL)
    return reduce_often(comm), comm.tuning(), algorithms(comm)


def test_all_ranks_learn_the_same_and_half_of_the_candidates_drop_out_at_each_agreement() -> None:
    outcomes = run_ranks(WORLD, learnt)
    bits, (row,), _ = outcomes[0]
    for other in outcomes[1:]:
        assert other[0] == bits
        assert other[1] == [row]
    tried = len(row["candidates"])
    assert tried > 4
    assert [len(times) for times in row["agreements"]] == [tried, (tried + 1) // 2, (tried + 3) // 4]
    assert all(time > 0 for times in row["agreements"] for time in times)
    assert row["algorithm"] in {candidate["algorithm"] for candidate in row["candidates"]}


@pytest.mark.parametrize("nbytes", [1 << width for width in range(18, 24)])
def test_in_memory_each_algorithm_is_tried_uncut(nbytes: int) -> None:
    def tried(comm: Communicator) -> set[str]:
        comm.set_links(_core.Links("switch", alpha=1e-7, lambda_=3e-7, beta=5e-11))
        comm.broadcast(np.ones(nbytes, np.uint8), 0)
        rows = comm.tuning()[0]["candidates"]
        return {row["algorithm"] for row in rows} - {row["algorithm"] for row in rows if row["segments"] == 1}

    assert run_ranks(2, tried) == [set(), set()]


def test_the_one_with_the_least_agreed_time_is_taken() -> None:
    _, (row,), _ = run_ranks(WORLD, learnt)[0]
    names = [(candidate["algorithm"], candidate["segments"]) for candidate in row["candidates"]]
    for times in row["agreements"]:
        names = [names[i] for i in np.argsort(times, kind="stable")][: (len(times) + 1) // 2]
    assert names == [(row["algorithm"], row["segments"])]


def test_every_candidate_is_tried_and_the_agreement_is_in_the_flight_log() -> None:
    def first_calls(comm: Communicator) -> Any:
        comm.set_links(MODEL)
        reduce_often(comm, 40)
        return algorithms(comm), comm.tuning()[0]["candidates"]

    calls, candidates = run_ranks(WORLD, first_calls)[0]
    for candidate in candidates:
        assert any(f"algorithm {candidate['algorithm']}," in call for call in calls)
    agreements = [call for call in run_ranks(WORLD, learnt)[0][2] if call.startswith("agreement #")]
    assert agreements
    assert agreements[0].endswith("on measured times")


@pytest.mark.parametrize("rows", ["log", 5, [5], None])
def test_what_is_no_log_is_refused(rows: Any) -> None:
    with init() as alone, pytest.raises(InvalidArgumentError, match=r"comm.tuning\(\).*rank 0 of 1"):
        alone.replay(rows)


def test_what_another_run_learnt_is_replayed_call_by_call() -> None:
    bits, rows, calls = run_ranks(WORLD, learnt)[0]
    rows = json.loads(json.dumps(rows))
    # the slowest wins in this log: what is measured here would not decide so
    rows[0]["agreements"] = [[1.0 / (i + 1) for i in range(len(t))] for t in rows[0]["agreements"]]

    def again(comm: Communicator) -> Any:
        comm.set_links(MODEL)
        comm.replay(rows)
        return reduce_often(comm), comm.tuning(), algorithms(comm)

    first, second = run_ranks(WORLD, again), run_ranks(WORLD, again)
    assert first[0][0] == second[0][0]
    assert first[0][1][0]["agreements"] == rows[0]["agreements"]
    assert first[0][2] == second[0][2]
    assert (first[0][0], first[0][2]) != (bits, calls)


def test_a_log_of_other_calls_is_refused_on_every_rank() -> None:
    _, rows, _ = run_ranks(WORLD, learnt)[0]
    rows[0]["agreements"][0].append(1.0)

    def again(comm: Communicator) -> None:
        comm.set_links(MODEL)
        comm.replay(rows)
        reduce_often(comm)

    for outcome in outcomes_of(WORLD, again):
        assert isinstance(outcome, MismatchError)
        assert "belongs to other calls" in str(outcome)


@pytest.mark.parametrize("best", range(3))
def test_what_is_tried_and_taken_is_what_runs(best: int) -> None:
    names = ["ring", "one_shot", "binomial_tree"]
    times = [float(place != best) for place in range(3)]
    left = [names[best], names[best == 0]]  # of the others the first

    def again(comm: Communicator) -> list[str]:
        comm.set_links(MODEL)
        reduce_often(comm, 1)
        (row,) = comm.tuning()
        row["candidates"] = [{**row["candidates"][0], "algorithm": name, "segments": 1} for name in names]
        comm.replay([row | {"agreements": [times, [0.0, 1.0]]}])
        ran = []
        for _ in range(40):  # 3 bursts of 2 calls of three, of two, then a rest
            reduce_often(comm, 1)
            ran.append(algorithms(comm)[-1].split("algorithm ")[1].split(",")[0])
        return ran

    for ran in run_ranks(WORLD, again):
        assert Counter(ran[:18]) == dict.fromkeys(names, 6)
        assert Counter(ran[18:30]) == dict.fromkeys(left, 6)
        assert set(ran[30:]) == {names[best]}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"candidates": []}, "no candidates"),
        ({"collective": "sing"}, "collective"),
        ({"candidates": [{"algorithm": "ring"}]}, r"no row of comm.tuning\(\): .*KeyError"),
        ({"agreements": "late"}, r"no row of comm.tuning\(\)"),
        ({"coded_counts": None}, r"no row of comm.tuning\(\)"),
    ],
)
def test_a_damaged_log_is_refused(change: dict[str, Any], sentence: str) -> None:
    _, rows, _ = run_ranks(2, learnt)[0]

    def again(comm: Communicator) -> None:
        with pytest.raises(InvalidArgumentError, match=sentence):
            comm.replay([{**rows[0], **change}])

    run_ranks(2, again)


@pytest.mark.parametrize("both_ways", [False, True])
def test_a_log_of_one_candidate(both_ways: bool) -> None:
    """Which may be tried in two ways, or has nothing to be tried against."""

    def again(comm: Communicator) -> Any:
        comm.set_links(MODEL)
        reduce_often(comm, 1)
        (row,) = comm.tuning()
        comm.replay([{**row, "candidates": row["candidates"][:1], "both_ways": both_ways, "agreements": []}])
        reduce_often(comm)
        (row,) = comm.tuning()
        return [len(times) for times in row["agreements"]], row["private_arrays"]

    for times, way in run_ranks(WORLD, again):
        assert (times, way) == ([], "rule") if not both_ways else times[0] == 2 and way != "rule"


def test_a_rest_is_watched_and_the_other_way_tried_when_times_change() -> None:
    """Each row: the agreed times of three bursts, and how private arrays go afterwards."""
    watched = [
        ([1.0, 1.1, 1.2], "staged"),
        ([2.0, 1.1, 0.1], "staged"),  # one burst may be disturbed
        ([2.0, 1.5, 1.0], "attached"),
        ([1.0, 1.1, 0.1], "attached"),
        ([0.5, 0.6, 0.5], "attached"),  # the third burst is of the other way, which is not quicker
        ([0.6, 0.4, 0.1], "attached"),  # 0.5 is what it is known for now
        ([0.7, 0.8, 0.6], "staged"),
    ]
    learning, period = 13, 32  # calls: 3 bursts of 2 of both ways, and the one that settles; 16 bursts

    def again(comm: Communicator) -> Any:
        comm.set_links(MODEL)
        reduce_often(comm, 1)
        (row,) = comm.tuning()
        log = [[1.0, 2.0]] + [[time] for times, _ in watched for time in times]
        row |= {"candidates": row["candidates"][:1], "both_ways": True, "agreements": log}
        comm.replay([row])
        reduce_often(comm, learning)
        ways = []
        for _ in watched:
            reduce_often(comm, period)
            ways.append(comm.tuning()[0]["private_arrays"])
        return ways, comm.tuning()[0]["agreements"] == log

    for ways, all_taken in run_ranks(WORLD, again):
        assert (ways, all_taken) == ([way for _, way in watched], True)


def test_a_call_that_was_being_learnt_is_not_when_it_is_frozen() -> None:
    def frozen(comm: Communicator) -> list[Any]:
        x = np.ones(64, np.float32)
        comm.all_reduce(x)
        learning = len(comm.tuning())
        comm.freeze()
        comm.all_reduce(x)
        return [learning, comm.tuning()]

    assert run_ranks(WORLD, frozen) == [[1, []]] * WORLD


def test_a_frozen_communicator_learns_and_measures_nothing() -> None:
    def frozen(comm: Communicator) -> Any:
        comm.freeze()
        bits = reduce_often(comm)
        kinds = {call.partition("(")[2] for call in algorithms(comm)}
        return bits, kinds, comm.tuning(), comm.frozen, comm.stats()["calls"]

    bits, kinds, rows, is_frozen, calls = run_ranks(WORLD, frozen)[0]
    assert (len(kinds), rows, is_frozen, calls) == (1, [], True, ENOUGH)
    assert run_ranks(WORLD, frozen)[0][0] == bits


def test_many_calls_in_flight_are_settled_in_their_order() -> None:
    def flood(comm: Communicator) -> Any:
        comm.set_links(MODEL)
        arrays = [np.full(1000, comm.rank + call, np.float32) for call in range(ENOUGH)]
        works = [comm.all_reduce(x, async_op=True) for x in arrays]
        for work in works:
            work.wait()
        return [float(x[0]) for x in arrays], comm.tuning()

    outcomes = run_ranks(WORLD, flood)
    assert outcomes[0][0] == [sum(rank + call for rank in range(WORLD)) for call in range(ENOUGH)]
    assert [len(t) for t in outcomes[0][1][0]["agreements"]]
    assert outcomes[1:] == outcomes[:-1]


def after_a_rest(comm: Communicator) -> Any:
    """The agreements of the first round and the row when another one has ended."""
    first = reduce_often(comm, ENOUGH) and comm.tuning()[0]["agreements"]
    x = np.zeros(1000, np.float32)
    for _ in range(66 * ENOUGH):
        comm.all_reduce(x)
    return first, comm.tuning()[0]


def test_after_a_rest_the_first_ones_meet_again() -> None:
    def long(comm: Communicator) -> Any:
        comm.set_links(MODEL)
        return after_a_rest(comm)

    first, row = run_ranks(2, long)[0]
    assert [len(times) for times in row["agreements"][len(first) :][:2]] == [4, 2]


def test_what_dropped_out_at_first_gets_another_chance() -> None:
    _, (row,), _ = run_ranks(WORLD, learnt)[0]
    tried = len(row["candidates"])
    # In the order of the candidates at first; then the last one of the four is by far the best.
    row["agreements"] = [[1.0 + i for i in range(len(times))] for times in row["agreements"]]
    row["agreements"] += [[2.0, 3.0, 4.0, 1.0], [1.0, 2.0]]

    def again(comm: Communicator) -> Any:
        comm.set_links(MODEL)
        comm.replay([row])
        return after_a_rest(comm)

    outcomes = run_ranks(WORLD, again)
    assert outcomes[1:] == outcomes[:-1]
    _, now = outcomes[0]
    names = [(candidate["algorithm"], candidate["segments"]) for candidate in now["candidates"]]
    assert tried > 4 and now["agreements"][: len(row["agreements"])] == row["agreements"]
    assert (now["algorithm"], now["segments"]) == names[4]


def test_a_wrong_model_is_corrected() -> None:
    """The model says that messages are dear and bytes are free; on the emulated links it is the contrary."""

    def corrected(comm: Communicator) -> Any:
        comm.set_links(_core.Links("switch", alpha=1e-2, beta=1e-11))
        x = np.zeros(1 << 14, np.float32)
        for _ in range(ENOUGH):
            comm.all_reduce(x)
        (row,) = comm.tuning()
        return row["candidates"][0]["algorithm"], row["algorithm"], row["agreements"][0]

    links = {"links": _core.Links("switch", alpha=1e-6, beta=2e-7)}
    first, taken, times = run_ranks(4, corrected, timeout=60.0, **links)[0]
    assert first == "one_shot"  # sends 3 messages of 64 KiB, 40 ms, where half of that is enough
    assert taken != first
    assert times[0] > 1.3 * min(times)


def test_asking_for_an_algorithm_leaves_nothing_to_learn() -> None:
    def asked(comm: Communicator) -> Any:
        x = np.zeros(1000, np.float32)
        for _ in range(ENOUGH):
            comm.all_reduce(x, algorithm="ring")
        return comm.tuning(), comm.stats()["calls"]

    assert run_ranks(2, asked)[0] == ([], ENOUGH)


def test_the_environment_can_ask_for_frozen_communicators(monkeypatch: pytest.MonkeyPatch) -> None:
    def frozen(comm: Communicator) -> tuple[bool, bool]:
        group = comm.split(0)
        assert group
        with group:
            return comm.frozen, group.frozen

    for value, expected in (("1", (True, True)), ("0", (False, False))):
        monkeypatch.setenv("GPUCOMM_DETERMINISTIC", value)
        with local(2, threads=True) as world:
            assert world.run(frozen) == [expected] * 2
    monkeypatch.setenv("GPUCOMM_DETERMINISTIC", "yes")
    with pytest.raises(InvalidArgumentError, match="GPUCOMM_DETERMINISTIC='yes' must be 0 or 1"):
        local(2, threads=True)


def test_init_can_ask_for_a_frozen_communicator() -> None:
    program = "import gpucomm; print(gpucomm.init(deterministic=True).frozen)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "True\n"


def test_messages_that_auto_has_settled_not_to_code() -> None:
    """It tells what it takes then, and counts it as the call, until calls are due that try again."""

    def body(comm: Communicator) -> Any:
        comm.set_links(MODEL)
        x, told = np.ones(1 << 16, np.float32), []
        for _ in range(70 * ENOUGH):
            settled = comm._settled_without_codec(x, "zfp:16", False)
            if settled is None:
                comm.reduce_scatter(x, codec="zfp:16")
            elif not told or told[-1] is None:
                (row,) = comm.tuning()
                assert settled == (row["algorithm"], row["segments"])
            told.append(settled)
        return told

    told = run_ranks(2, body)
    assert told[0] == told[1]
    tries = [settled is None for settled in told[0]]
    changes = [i for i in range(1, len(tries)) if tries[i] != tries[i - 1]]
    assert tries[0] and len(changes) >= 3, "coding in memory does not pay; after a rest it is tried again"
    assert changes[1] - changes[0] > 10 * changes[0]


@pytest.mark.parametrize(("beta", "counts", "codes"), [(9e-10, 1.25, False), (2e-9, 1.05, True)])
def test_what_loses_bits_must_save_more_in_memory(beta: float, counts: float, codes: bool) -> None:
    """By agreed times of 1 without the codec and of 0.9 with it; a log is replayed as it was."""

    def calls(comm: Communicator, often: int) -> Any:
        for _ in range(often):
            comm.all_gather(np.ones(1 << 14, np.float32), codec="int8")
        (row,) = comm.tuning()
        return row

    def body(comm: Communicator) -> Any:
        comm.set_links(_core.Links("switch", alpha=1e-2, beta=beta))
        comm._set_coding("int8", 1e-12, 1e-12)
        row = calls(comm, 1)
        found = row["coded_counts"]
        one = row["candidates"][0] | {"segments": 1}
        two = [one | {"algorithm": name} for name in ("direct", "coded_ring")]
        for row["coded_counts"] in (found, 1.2):
            comm.replay([row | {"candidates": two, "both_ways": False, "agreements": [[1.0, 0.9]]}])
            yield found, calls(comm, 13)["algorithm"]

    right = [(counts, "coded_ring" if codes else "direct"), (counts, "direct")]
    assert run_ranks(2, lambda comm: list(body(comm))) == [right] * 2


@pytest.mark.parametrize(("seconds", "tried"), [(1e-12, True), (1e-9, False)])
def test_in_memory_a_codec_is_only_tried_where_the_model_sees_a_gain(seconds: float, tried: bool) -> None:
    """Else its calls learn with those that name none."""

    def body(comm: Communicator) -> Any:
        comm.set_links(_core.Links("switch", alpha=1e-7, beta=9e-10))
        comm._set_coding("int8", seconds, seconds)
        x = np.ones(1 << 20, np.float32)
        for _ in range(60):
            comm.all_gather(x)
            comm.all_gather(x, codec="int8")
        return {row["codec"] for row in comm.tuning()}, comm.stats()["encodes"] > 0

    assert run_ranks(2, body) == [({"", "int8"} if tried else {""}, tried)] * 2


def test_a_codec_that_was_not_tried_is_not_tried_in_a_replay() -> None:
    """Though by the links that are measured there it would be."""

    def coded(comm: Communicator) -> bool:
        before = comm.stats()["encodes"]
        for _ in range(ENOUGH):
            comm.all_gather(np.ones(1 << 14, np.float32), codec="int8")
        return bool(comm.stats()["encodes"] > before)

    def body(comm: Communicator) -> list[bool]:
        comm._set_coding("int8", 1e-12, 1e-12)
        comm.set_links(_core.Links("switch", alpha=1e-7, beta=1e-12))
        found = [coded(comm)]
        rows = comm.tuning()
        comm.set_links(_core.Links("switch", alpha=1e-7, beta=1e-8))
        for log in (rows, []):
            comm.replay(log)
            found.append(coded(comm))
        return found

    assert run_ranks(2, body) == [[False, False, True]] * 2


@pytest.mark.parametrize(("links", "pays"), [("switch:10Mbit", True), ("switch:1Tbit", False)])
def test_frozen_communicators_settle_by_the_model(links: str, pays: bool) -> None:
    def body(comm: Communicator) -> Any:
        comm.freeze()
        return comm._settled_without_codec(np.ones(1 << 20, np.float32), "int8", True)

    found = run_ranks(2, body, **parse_emulated(links).arguments(2))
    assert found[0] == found[1] and (found[0] is None) == pays


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_auto_leaves_what_is_only_for_those_who_name_it(collective: str) -> None:
    """Such as codings at every hop, which leave other bits on each rank."""
    named_only = {name for name, about in _core.algorithms().items() if about["named_only"]}

    def body(comm: Communicator) -> Any:
        comm.set_links(_core.Links("switch", alpha=1e-5, beta=1e-8))
        getattr(comm, collective)(np.ones(1 << 16, np.float32), codec="int8")
        (row,) = comm.tuning()
        return {candidate["algorithm"] for candidate in row["candidates"]}

    tried = run_ranks(2, body)[0]
    assert "coded_ring" in tried and "ring_per_hop" in named_only and not tried & named_only


def test_what_is_learnt_of_a_fixed_codec_holds_for_every_eps() -> None:
    """Each width is a kind of its own; a loop whose EPS changes in every call learns, and does not grow."""

    def body(comm: Communicator) -> Any:
        comm.set_links(_core.Links("switch", alpha=1e-5, beta=1e-5))
        for call in range(ENOUGH):
            comm.all_reduce(np.ones(1 << 14, np.float32), codec=f"fixed:{0.1 + call / 1000}")
        comm.all_reduce(np.ones(1 << 14, np.float32), codec="fixed:0.001")
        return [(row["codec"], len(row["agreements"])) for row in comm.tuning() if row["codec"]]

    rows = run_ranks(2, body)[0]
    assert [codec for codec, _ in rows] == ["fixed, 16 bits", "fixed, 8 bits"]
    assert rows[0][1] == 0 < rows[1][1]
