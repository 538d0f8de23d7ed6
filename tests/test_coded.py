"""Collectives with a codec: the plans, the error's bound, the same bits, and what is refused."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from codec_samples import CODECS, usable
from conftest import pairs
from ranks import outcomes_of, run_ranks

from gpucomm import Communicator, _core, codecs
from gpucomm.errors import (
    CollectiveTimeoutError,
    Error,
    InvalidArgumentError,
    MismatchError,
    UnsupportedTypeError,
)

CODED = pairs(coded=True)
TELLING = [pair for pair in CODED if pair[0] != "all_gather" and not _core.algorithms()[pair[1]]["repeats"]]
IDENTICAL = [pair for pair in CODED if pair[1] != "ring_per_hop"]
KEEPING = [
    spec for spec in CODECS if all(_core.Codec(spec).traits[kept] for kept in ("keeps_nan", "keeps_infinity"))
]
COUNTS = (1, 7, 1000, 70_001)


def passes(collective: str, algorithm: str, world: int, additive: bool) -> int:
    """Lossy passes on a contribution's way, as the algorithms' files say."""
    if algorithm == "recursive_doubling":
        stages = world.bit_length() - 1
        return 1 if additive else stages + (world > 1 << stages)
    if algorithm == "two_shot":
        return 2 if collective == "all_reduce" and not additive else 1
    if algorithm == "ring_per_hop" and not (additive and collective == "reduce_scatter"):
        return world - 1
    if collective == "all_gather" or additive:
        return 1
    return world if collective == "all_reduce" else world - 1


def errors(collective: str, algorithm: str, world: int, additive: bool) -> int:
    """Encodings whose errors add up in a result."""
    if collective == "all_gather":
        return world - 1 if algorithm == "ring_per_hop" else 1
    if algorithm == "recursive_doubling" and not additive:
        power = 1 << (world.bit_length() - 1)
        return 2 * (power - 1) + world - power  # two in each pair of messages, one for each guest
    return world if collective == "all_reduce" or additive else world - 1


@pytest.mark.parametrize(("collective", "algorithm"), CODED)
@pytest.mark.parametrize("world", [2, 3, 4, 7])
def test_plans_are_correct_and_lose_as_often_as_they_say(collective: str, algorithm: str, world: int) -> None:
    for segments, additive, in_place in itertools.product([1, 2, 3, 6], [False, True], [False, True]):
        how = {"segments": segments, "in_place": in_place, "additive": additive}
        verified = _core.verify(_core.build_plans(collective, algorithm, world, **how))
        assert (verified.repeats > 1) <= _core.algorithms()[algorithm]["repeats"], how
        assert verified.lossy_passes == passes(collective, algorithm, world, additive), how
        assert verified.encode_errors == errors(collective, algorithm, world, additive), how


@functools.lru_cache(256)
def drawn(rank: int, count: int) -> Any:
    return np.random.default_rng([rank, count]).standard_normal(count).astype(np.float32)


def contribution(rank: int, count: int) -> Any:
    return drawn(rank, count).copy()


def call(comm: Communicator, collective: str, count: int, op: str = "sum", **how: Any) -> Any:
    """A call on `count` elements of every rank, or for every rank."""
    if collective == "all_gather":
        return comm.all_gather(contribution(comm.rank, count), **how)
    if collective == "reduce_scatter":
        return comm.reduce_scatter(contribution(comm.rank, count * comm.world), op, **how)
    return comm.all_reduce(contribution(comm.rank, count), op, **how)


def whole(comm: Communicator, collective: str, x: Any, **how: Any) -> Any:
    """The result of all ranks together, the same on all."""
    if collective == "all_gather":
        return comm.all_gather(x, **how)
    if collective == "reduce_scatter":
        return comm.all_gather(comm.reduce_scatter(x, **how))
    return comm.all_reduce(x, **how)


@functools.lru_cache(64)
def exact(collective: str, count: int, rank: int, world: int) -> tuple[Any, Any]:
    """The sum, and the sum of magnitudes, in float64."""
    if collective == "all_gather":
        parts = np.concatenate([contribution(r, count) for r in range(world)]).astype(np.float64)
        return parts, np.abs(parts)
    size = count * (world if collective == "reduce_scatter" else 1)
    all_ = np.stack([contribution(r, size) for r in range(world)]).astype(np.float64)
    if collective == "reduce_scatter":
        all_ = all_[:, rank * count : (rank + 1) * count]
    return all_.sum(0), np.abs(all_).sum(0)


@pytest.mark.parametrize(("collective", "algorithm"), CODED)
@pytest.mark.parametrize("spec", CODECS)
@pytest.mark.parametrize("world", [2, 4])
def test_the_error_keeps_to_its_bound(collective: str, algorithm: str, spec: str, world: int) -> None:
    def body(comm: Communicator) -> list[Any]:
        return [call(comm, collective, n, codec=spec, algorithm=algorithm, segments=3) for n in COUNTS]

    results = run_ranks(world, body)
    codec = usable(spec, world=world)
    lost = errors(collective, algorithm, world, codec.traits["additive"])
    for rank, arrays in enumerate(results):
        for count, result in zip(COUNTS, arrays, strict=True):
            expected, magnitudes = exact(collective, count, rank, world)
            # a partial sum, with the errors so far, is at most 1.5 times the sum of magnitudes
            bound = lost * codec.bound(1.5 * float(magnitudes.max()), "float32") + 1e-6
            assert np.abs(result - expected).max() <= bound


@pytest.mark.parametrize(("collective", "algorithm"), IDENTICAL)
@pytest.mark.parametrize("spec", ["int8", "mpc", "fixed:0.001", "zfp:8"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("world", [3, 7])
def test_all_ranks_have_the_same_bits_and_again(
    collective: str, algorithm: str, spec: str, dtype: str, world: int
) -> None:
    if not _core.Codec(spec).takes(dtype):
        pytest.skip(f"{spec} does not take {dtype}")

    def body(comm: Communicator) -> Any:
        twice = []
        for _ in range(2):
            x = contribution(comm.rank, 1000 * world).astype(dtype)
            twice.append(whole(comm, collective, x, codec=spec, algorithm=algorithm).tobytes())
        return twice

    results = {bits for twice in run_ranks(world, body) for bits in twice}
    assert len(results) == 1


@pytest.mark.parametrize(("collective", "algorithm"), CODED)
@pytest.mark.parametrize("spec", KEEPING)
def test_what_is_not_finite_stays_where_it_is(collective: str, algorithm: str, spec: str) -> None:
    def body(comm: Communicator) -> Any:
        x = contribution(comm.rank, 3000)
        if comm.rank == 1:
            x[[5, 2900]] = np.nan, np.inf
        return whole(comm, collective, x, codec=spec, algorithm=algorithm, segments=2)

    gathers = collective == "all_gather"
    expected = contribution(1, 3000) if gathers else exact("all_reduce", 3000, 0, 3)[0]
    for result in run_ranks(3, body):
        found = result[3000:6000] if gathers else result
        assert np.isnan(found[5]) and found[2900] == np.inf
        assert np.abs(np.delete(found - expected, [5, 2900])).max() < 2  # of sums up to 6


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_a_lossless_codec_gives_the_bits_of_the_dense_ring(collective: str, op: str) -> None:
    def body(comm: Communicator) -> list[tuple[bytes, bytes]]:
        both = []
        for count in COUNTS:
            # all_reduce is cut at the blocks of mpc, and folds another element in another order
            for spec in ("identity",) if collective == "all_reduce" else ("identity", "mpc"):
                coded = call(comm, collective, count, op, codec=spec, algorithm="coded_ring", segments=2)
                dense = call(comm, collective, count, op, algorithm="ring", segments=2)
                both.append((coded.tobytes(), dense.tobytes()))
        return both

    for both in run_ranks(4, body):
        for coded, dense in both:
            assert coded == dense


@pytest.mark.parametrize("world", [2, 3, 5])
def test_a_gathered_chunk_is_encoded_once_and_decoded_by_everyone(world: int) -> None:
    def body(comm: Communicator) -> dict[str, int]:
        call(comm, "all_gather", 1000, codec="int8", algorithm="coded_ring", segments=1)
        return comm.stats()

    for stats in run_ranks(world, body):
        assert (stats["encodes"], stats["decodes"]) == (1, world)


def test_what_is_sent_is_the_coded_bytes() -> None:
    def body(comm: Communicator) -> int:
        call(comm, "all_gather", 1 << 16, codec="int8", algorithm="coded_ring", segments=1)
        return int(comm.stats()["bytes_sent"])

    header = 8
    size = _core.Codec("int8").max_bytes(1 << 16, "float32") + header
    assert run_ranks(4, body) == [3 * size] * 4


@pytest.mark.parametrize("world", [2, 4])
def test_an_additive_codec_sums_integers(world: int) -> None:
    step = 2.0**-9  # the greatest power of two up to 2 x 0.001

    def body(comm: Communicator) -> Any:
        return call(comm, "all_reduce", 5000, codec="fixed:0.001", algorithm="coded_ring", segments=2)

    expected = sum(np.rint(contribution(r, 5000).astype(np.float64) / step) for r in range(world)) * step
    for result in run_ranks(world, body):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("collective", "algorithm"), [pair for pair in CODED if pair[0] != "all_gather"])
@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("largest", [0.9, 0.98, 15.9])
def test_sums_of_an_additive_codec_may_be_as_large_as_it_agreed_on(
    collective: str, algorithm: str, op: str, largest: float
) -> None:
    def body(comm: Communicator) -> Any:
        x = np.full(1000 * comm.world, largest, np.float32)
        how = {"op": op, "codec": "fixed:0.01", "algorithm": algorithm}
        return comm.all_reduce(x, **how) if collective == "all_reduce" else comm.reduce_scatter(x, **how)

    for world in (2, 3, 4):
        for result in run_ranks(world, body):
            exact_sum = largest * (1 if op == "mean" else world)
            assert np.abs(result - exact_sum).max() <= 0.01 * world


def test_a_frozen_choice_knows_whether_errors_are_told() -> None:
    count = 1000

    def body(comm: Communicator) -> Any:
        comm.set_links(_core.Links("switch", alpha=1e-3, beta=1e-6))
        comm.freeze()
        comm.all_reduce(contribution(comm.rank, count), codec="int8")
        assert comm.stats()["encodes"] == 2  # by recursive doubling, which tells no errors
        error = np.zeros(count, np.float32)
        return comm.all_reduce(contribution(comm.rank, count), codec="int8", error=error), error

    results = run_ranks(4, body)
    lost = np.sum([error.astype(np.float64) for _, error in results], 0)
    given = np.sum([contribution(r, count).astype(np.float64) for r in range(4)], 0)
    assert np.abs(lost).max() > 0
    np.testing.assert_allclose(results[0][0] + lost, given, atol=3e-6)


def test_a_refused_call_leaves_x_as_it_is() -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(100, np.float32)
        for wrong in ({"codec": "gzip"}, {"algorithm": "two_shot"}, {"codec": "int8", "error": x}):
            with pytest.raises(InvalidArgumentError):
                comm.all_reduce(x, "premul_sum", scale=0.5, **wrong)
            with pytest.raises(InvalidArgumentError):
                comm.reduce_scatter(x, "premul_sum", scale=0.5, **wrong)
        assert (x == 1).all()

    run_ranks(2, body)


@pytest.mark.parametrize(
    ("collective", "algorithm"), [*pairs("all_reduce", "reduce_scatter", coded=True), ("all_reduce", "auto")]
)
def test_what_was_agreed_for_fewer_ranks_is_refused(collective: str, algorithm: str) -> None:
    """Its integers would wrap: 4 times 60 to -16."""
    spec = codecs.agreed("fixed:0.5", 60.0, 2)

    def body(comm: Communicator) -> Any:
        x = np.full(1000 * comm.world, 60, np.float32)
        with pytest.raises(InvalidArgumentError, match="holds sums of 2 ranks, not of 4"):
            getattr(comm, collective)(x, algorithm=algorithm, codec=spec)
        return comm.all_gather(x, codec=spec)[-1] == 60 and (x == 60).all()  # which adds nothing up

    assert all(run_ranks(4, body))


@pytest.mark.parametrize("spec", CODECS)
@pytest.mark.parametrize("world", [1, 2])
def test_the_choice_may_be_left_open(spec: str, world: int) -> None:
    def body(comm: Communicator) -> Any:
        return [call(comm, "all_reduce", n, codec=spec) for n in (1, 5000, 1 << 17)]

    codec = usable(spec, world=world)
    for results in run_ranks(world, body):
        for count, result in zip((1, 5000, 1 << 17), results, strict=True):
            expected, magnitudes = exact("all_reduce", count, 0, world)
            # of recursive doubling as many errors add up as of the others, or more
            bound = 2 * world * codec.bound(1.5 * float(magnitudes.max()), "float32") + 1e-6
            assert np.abs(result - expected).max() <= bound


@pytest.mark.parametrize(("collective", "algorithm"), TELLING)
@pytest.mark.parametrize("spec", ["int4", "int8", "bf16", "fixed:0.01", "mpc"])
@pytest.mark.parametrize("op", ["sum", "mean", "premul_sum"])
@pytest.mark.parametrize("world", [2, 3])
def test_what_is_lost_is_told(collective: str, algorithm: str, spec: str, op: str, world: int) -> None:
    """The results of a call and the ranks' errors add up to the contributions."""
    count = 3000
    scale = {"scale": 0.5} if op == "premul_sum" else {}

    def body(comm: Communicator) -> Any:
        size = count * (comm.world if collective == "reduce_scatter" else 1)
        error = np.full(size, 7, np.float32)
        result = call(
            comm, collective, count, op, codec=spec, algorithm=algorithm, segments=3, error=error, **scale
        )
        return result, error

    results = run_ranks(world, body)
    parts = [result for result, _ in results]
    total = np.concatenate(parts) if collective == "reduce_scatter" else parts[0]
    given = np.sum([contribution(r, len(total)).astype(np.float64) for r in range(world)], 0)
    given *= scale.get("scale", 1)
    lost = np.sum([error.astype(np.float64) for _, error in results], 0)
    assert spec == "mpc" or np.abs(lost).max() > 0
    times = world if op == "mean" else 1
    np.testing.assert_allclose(total.astype(np.float64) * times + lost, given, atol=3e-6)


@pytest.mark.parametrize(("collective", "algorithm"), TELLING)
@pytest.mark.parametrize("spec", ["int4", "bf16", "zfp:8", "mpc"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("world", [3, 4])
def test_the_bits_are_the_same_whether_errors_are_told(
    collective: str, algorithm: str, spec: str, dtype: Any, world: int
) -> None:
    if not _core.Codec(spec).takes(np.dtype(dtype).name):
        pytest.skip(f"{spec} does not take it")

    def body(comm: Communicator) -> Any:
        how = {"codec": spec, "algorithm": algorithm, "segments": 3}
        size = 5000 * (comm.world if collective == "reduce_scatter" else 1)
        x = contribution(comm.rank, size).astype(dtype)
        given = x.copy()
        one_pass = getattr(comm, collective)(x, out=np.zeros(5000, dtype), **how)
        assert x.tobytes() == given.tobytes()
        told = getattr(comm, collective)(x, out=np.zeros(5000, dtype), error=np.zeros(size, dtype), **how)
        stats = comm.stats()
        assert stats["encodes"] % 2 == stats["decodes"] % 2 == 0
        mine = slice(5000 * comm.rank, 5000 * (comm.rank + 1)) if size > 5000 else slice(None)
        in_place = getattr(comm, collective)(x, out=x[mine], **how)
        return one_pass.tobytes() == told.tobytes() == in_place.tobytes()

    assert run_ranks(world, body) == [True] * world


@pytest.mark.parametrize("algorithm", ["coded_ring", "two_shot", "recursive_doubling"])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_a_sum_beyond_the_dtype_is_not_cut_to_its_largest_number(algorithm: str, op: str) -> None:
    """But one that the coding alone has shifted there is."""

    def body(comm: Communicator) -> Any:
        x = np.array([40000, -40000, 16380], np.float16)
        return comm.all_reduce(x, op, codec="fixed:8", algorithm=algorithm)

    for found in run_ranks(4, body):
        assert found[:2].tolist() == [np.inf, -np.inf]
        assert found[2] == (65504 if op == "sum" else 16376)


def test_added_to_the_next_contribution_nothing_is_lost_for_good() -> None:
    calls = 20

    def body(comm: Communicator) -> Any:
        x, error, total = contribution(comm.rank, 500), np.zeros(500, np.float32), np.zeros(500)
        for _ in range(calls):
            total += comm.all_reduce(x + error, codec="int4", algorithm="two_shot", error=error)
        return total

    expected = calls * sum(contribution(r, 500).astype(np.float64) for r in range(2))
    lost = np.abs(run_ranks(2, body)[0] - expected).max()
    assert lost < 2  # of some twenty times that without


@pytest.mark.parametrize(
    ("sentence", "how"),
    [
        ("pass codec= too", {}),
        ("must hold 100 elements", {"codec": "int8", "error": np.zeros(99, np.float32)}),
        ("more than once", {"codec": "int8", "algorithm": "recursive_doubling"}),
    ],
)
def test_an_error_that_cannot_be_told_is_refused(sentence: str, how: dict[str, Any]) -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(InvalidArgumentError, match=sentence):
            comm.all_reduce(np.ones(100, np.float32), **{"error": np.zeros(100, np.float32), **how})

    run_ranks(2, body)


def test_an_error_may_not_share_memory_with_the_array() -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(100, np.float32)
        with pytest.raises(InvalidArgumentError, match="apart"):
            comm.all_reduce(x, codec="int8", error=x)

    run_ranks(2, body)


@pytest.mark.parametrize("spec", ["int8", "fixed:0.01"])
@pytest.mark.parametrize(("bytes_a_second", "pays"), [(1e8, True), (1e11, False)])
def test_auto_codes_only_where_the_model_says_that_it_pays(
    spec: str, bytes_a_second: float, pays: bool
) -> None:
    def body(comm: Communicator) -> int:
        comm.set_links(_core.Links("switch", alpha=1e-6, beta=1 / bytes_a_second))
        comm.freeze()  # the model alone
        comm.all_reduce(np.ones(1 << 16, np.float32), codec=spec)
        return int(comm.stats()["encodes"])

    assert [encodes > 0 for encodes in run_ranks(2, body)] == [pays, pays]


def test_many_in_flight_and_shared_arrays() -> None:
    def body(comm: Communicator) -> Any:
        from gpucomm import empty

        arrays = [empty(2000, "float32", comm=comm) for _ in range(8)]
        for i, x in enumerate(arrays):
            x[...] = contribution(comm.rank, 2000) + i
        works = [comm.all_reduce(x, codec="int8", algorithm="coded_ring", async_op=True) for x in arrays]
        for work in works:
            work.wait()
        assert comm.stats()["encodes"] > 0
        return [np.asarray(x).copy() for x in arrays]

    results = run_ranks(3, body)
    for i in range(8):
        expected = sum(contribution(r, 2000) + i for r in range(3))
        assert np.abs(results[0][i] - expected).max() < 3 * 12 * 3 / 100
        assert results[0][i].tobytes() == results[1][i].tobytes() == results[2][i].tobytes()


@pytest.mark.parametrize(
    ("kind", "sentence", "make"),
    [
        (InvalidArgumentError, "unknown codec 'gzip'", lambda c, x: c.all_reduce(x, codec="gzip")),
        (
            UnsupportedTypeError,
            "int8 does not take int32",
            lambda c, x: c.all_reduce(x.astype("i4"), codec="int8"),
        ),
        (InvalidArgumentError, "cannot carry op 'max'", lambda c, x: c.all_reduce(x, "max", codec="int8")),
        (
            InvalidArgumentError,
            "'ring' takes no codec",
            lambda c, x: c.all_reduce(x, algorithm="ring", codec="int8"),
        ),
        (
            InvalidArgumentError,
            "'two_shot' needs a codec",
            lambda c, x: c.all_reduce(x, algorithm="two_shot"),
        ),
    ],
)
def test_what_cannot_be_coded_is_refused(kind: type[Error], sentence: str, make: Any) -> None:
    def body(comm: Communicator) -> bool:
        with pytest.raises(kind, match=sentence):
            make(comm, np.ones(100, np.float32))
        comm.barrier()
        return comm.closed

    assert run_ranks(2, body) == [False, False]


def test_ranks_with_other_codecs_name_both() -> None:
    def body(comm: Communicator) -> None:
        comm.set_links(_core.Links())
        comm.all_reduce(
            np.ones(1000, np.float32), codec="int8" if comm.rank else "bf16", algorithm="coded_ring"
        )

    for outcome in outcomes_of(2, body):
        assert isinstance(outcome, MismatchError)
        assert "codec int8" in str(outcome)
        assert "codec bf16" in str(outcome)


@pytest.mark.parametrize(("one", "other"), [("zfp:8", "zfp:16"), ("int8", None)])
@pytest.mark.parametrize("frozen", [True, False])
def test_other_codecs_are_seen_where_none_is_taken_too(one: str, other: str | None, frozen: bool) -> None:
    def body(comm: Communicator) -> None:
        comm.set_links(_core.Links("switch", alpha=1e-6, beta=1e-12))  # coding does not pay
        if frozen:
            comm.freeze()
        for _ in range(20):
            comm.all_reduce(np.ones(1 << 14, np.float32), codec=other if comm.rank else one)

    for outcome in outcomes_of(2, body):
        assert isinstance(outcome, MismatchError)
        assert f"codec {one}" in str(outcome) or not frozen


@pytest.mark.parametrize("spec", ["int8", "fixed:0.01"])
def test_what_a_codec_cannot_carry_is_an_error_on_every_rank(spec: str) -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(1000, np.float32)
        if comm.rank == 1:
            x[5] = np.nan
        comm.all_reduce(x, codec=spec, algorithm="coded_ring")

    for outcome in outcomes_of(3, body):
        assert isinstance(outcome, Error)
        assert not isinstance(outcome, CollectiveTimeoutError)


@pytest.mark.parametrize(("collective", "algorithm"), CODED)
@pytest.mark.parametrize("at", [4321, 9_003])
def test_the_element_that_cannot_be_carried_is_counted_in_the_array(
    collective: str, algorithm: str, at: int
) -> None:
    """Whichever piece it lies in; of what is folded, in the other rank's chunk, which is encoded."""

    def body(comm: Communicator) -> None:
        x = np.ones(20_000, np.float32)
        if comm.rank == 1:
            x[at] = np.inf
        getattr(comm, collective)(x, codec="int8", algorithm=algorithm, segments=3)

    for outcome in outcomes_of(2, body):
        assert isinstance(outcome, Error)
        assert f"codec int8 cannot carry element {at}, which is inf" in str(outcome)


def test_a_list_of_arrays_travels_coded_too() -> None:
    def body(comm: Communicator) -> Any:
        arrays = [contribution(comm.rank, n) for n in (1000, 3, 500)]
        comm.all_reduce(arrays, codec="int8", algorithm="coded_ring")
        assert comm.stats()["encodes"] > 0
        return arrays

    results = run_ranks(2, body)
    for i, n in enumerate((1000, 3, 500)):
        assert np.abs(results[0][i] - contribution(0, n) - contribution(1, n)).max() < 0.1
        assert results[0][i].tobytes() == results[1][i].tobytes()


@pytest.mark.parametrize("world", [2, 4, 8])
def test_the_model_has_the_closed_forms_of_the_paper(world: int) -> None:
    """papers: all-gather Tc + (N-1)(alpha + beta S / R) + Td, per hop (N-1)(Tc + alpha + beta S / R + Td)."""
    alpha, beta, encode, decode, part = 1e-4, 1e-8, 2e-9, 1e-9, 1 << 20
    links = _core.Links("switch", alpha=alpha, beta=beta)
    costs = {"coded": 1 / 8, "encode": encode, "decode": decode}

    def total(algorithm: str) -> float:
        return _core.total_time("all_gather", algorithm, world, part * world, links, **costs)

    hop = alpha + beta * part / 8
    once = encode * part + (world - 1) * hop + decode * part
    # the own part is decoded while the first message travels
    assert total("coded_ring") == pytest.approx(once, rel=1e-9)
    each = (world - 1) * (encode * part + hop + decode * part)
    assert total("ring_per_hop") == pytest.approx(each, rel=1e-9)
