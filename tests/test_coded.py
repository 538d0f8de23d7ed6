"""Collectives with a codec: the plans, the error's bound, the same bits, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from codec_samples import CODECS
from conftest import pairs
from ranks import outcomes_of, run_ranks

from gpucomm import Communicator, _core
from gpucomm.errors import (
    CollectiveTimeoutError,
    Error,
    InvalidArgumentError,
    MismatchError,
    UnsupportedTypeError,
)

CODED = pairs(coded=True)
IDENTICAL = [pair for pair in CODED if pair[1] != "ring_per_hop"]
COUNTS = (1, 7, 1000, 70_001)


def passes(collective: str, algorithm: str, world: int, additive: bool) -> int:
    """Lossy passes on a contribution's way, as the algorithms' files say."""
    if algorithm == "two_shot":
        return 2 if collective == "all_reduce" else 1
    if algorithm == "ring_per_hop":
        return world - 1
    if collective == "all_gather" or additive:
        return 1
    return world if collective == "all_reduce" else world - 1


def errors(collective: str, algorithm: str, world: int, additive: bool) -> int:
    """Encodings whose errors add up in a result."""
    if collective == "all_gather":
        return world - 1 if algorithm == "ring_per_hop" else 1
    return world if collective == "all_reduce" or additive else world - 1


@pytest.mark.parametrize(("collective", "algorithm"), CODED)
@pytest.mark.parametrize("world", [2, 3, 4, 7])
@pytest.mark.parametrize("segments", [1, 2, 3, 6])
@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_plans_are_correct_and_lose_as_often_as_they_say(
    collective: str, algorithm: str, world: int, segments: int, additive: bool, in_place: bool
) -> None:
    plans = _core.build_plans(
        collective, algorithm, world, segments=segments, in_place=in_place, additive=additive
    )
    additive = additive and algorithm == "coded_ring"
    verified = _core.verify(plans)
    assert verified.lossy_passes == passes(collective, algorithm, world, additive)
    assert verified.encode_errors == errors(collective, algorithm, world, additive)


def contribution(rank: int, count: int) -> Any:
    return np.random.default_rng([rank, count]).standard_normal(count).astype(np.float32)


def call(comm: Communicator, collective: str, count: int, op: str = "sum", **how: Any) -> Any:
    """A call on `count` elements of every rank, or for every rank."""
    if collective == "all_gather":
        return comm.all_gather(contribution(comm.rank, count), **how)
    if collective == "reduce_scatter":
        return comm.reduce_scatter(contribution(comm.rank, count * comm.world), op, **how)
    return comm.all_reduce(contribution(comm.rank, count), op, **how)


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
    codec = _core.Codec(spec)
    concrete = codec.agreed(8.0, world) if codec.traits["needs_maximum"] else codec
    lost = errors(collective, algorithm, world, codec.traits["additive"])
    for rank, arrays in enumerate(results):
        for count, result in zip(COUNTS, arrays, strict=True):
            expected, magnitudes = exact(collective, count, rank, world)
            # a partial sum, with the errors so far, is at most 1.5 times the sum of magnitudes
            bound = lost * concrete.bound(1.5 * float(magnitudes.max()), "float32") + 1e-6
            assert np.abs(result - expected).max() <= bound


@pytest.mark.parametrize(("collective", "algorithm"), IDENTICAL)
@pytest.mark.parametrize("spec", ["int8", "mpc", "fixed:0.001", "zfp:8"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_all_ranks_have_the_same_bits_and_again(
    collective: str, algorithm: str, spec: str, dtype: str
) -> None:
    if not _core.Codec(spec).takes(dtype):
        pytest.skip(f"{spec} does not take {dtype}")

    def body(comm: Communicator) -> Any:
        twice = []
        for _ in range(2):
            x = contribution(comm.rank, 3000).astype(dtype)
            if collective == "all_gather":
                y = comm.all_gather(x, codec=spec, algorithm=algorithm)
            elif collective == "reduce_scatter":
                y = comm.all_gather(comm.reduce_scatter(x, codec=spec, algorithm=algorithm))
            else:
                y = comm.all_reduce(x, codec=spec, algorithm=algorithm)
            twice.append(y.tobytes())
        return twice

    results = {bits for twice in run_ranks(3, body) for bits in twice}
    assert len(results) == 1


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


def test_many_in_flight_and_shared_arrays() -> None:
    def body(comm: Communicator) -> Any:
        from gpucomm import empty

        arrays = [empty(2000, "float32", comm=comm) for _ in range(8)]
        for i, x in enumerate(arrays):
            x[...] = contribution(comm.rank, 2000) + i
        works = [comm.all_reduce(x, codec="int8", async_op=True) for x in arrays]
        for work in works:
            work.wait()
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
        (InvalidArgumentError, "can not carry op 'max'", lambda c, x: c.all_reduce(x, "max", codec="int8")),
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


def test_a_list_of_arrays_travels_coded_too() -> None:
    def body(comm: Communicator) -> Any:
        arrays = [contribution(comm.rank, n) for n in (1000, 3, 500)]
        return comm.all_reduce(arrays, codec="int8")

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
