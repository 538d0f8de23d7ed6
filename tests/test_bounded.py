"""all_reduce with max_rel_err: the promise holds, the cheapest is taken, and the report is true."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

from gpucomm import Communicator, _core, bounded
from gpucomm.bounded import Bounded
from gpucomm.errors import InvalidArgumentError, MismatchError, UnsupportedTypeError

SLOW, FAST = 1e7, 1e12  # bytes a second


def links_of(bytes_a_second: float) -> _core.Links:
    return _core.Links("switch", alpha=1e-6, beta=1 / bytes_a_second)


def slow(comm: Communicator) -> None:
    """Its links, beside which no codec takes time, nor has to be measured."""
    comm.set_links(links_of(SLOW))
    for about in _core.codecs().values():
        for spec in (*about["bounded"], *about["examples"]):
            comm._set_coding(spec, 1e-10, 1e-10)


def contribution(rank: int, count: int, kind: str) -> Any:
    x = np.random.default_rng([rank, count]).standard_normal(count)
    if kind == "spread":
        x = x * np.exp(4 * x)
    elif kind == "tiny":
        x = x * 1e-38
    elif kind == "zeros":
        x = x * 0
    return x.astype(np.float32)


def reduced(world: int, most: float, kind: str = "normal", op: str = "sum", **how: Any) -> list[Bounded]:
    (found,) = reduced_by_each(world, [most], kind, op, **how)
    return found


def reduced_by_each(world: int, each: Sequence[float], kind: str, op: str, **how: Any) -> list[list[Bounded]]:
    """Of each max_rel_err what the ranks found."""

    def body(comm: Communicator) -> Any:
        slow(comm)
        x = contribution(comm.rank, 5000, kind)
        return [comm.all_reduce(x.copy(), op, max_rel_err=most, **how) for most in each]

    return [list(found) for found in zip(*run_ranks(world, body), strict=True)]


@pytest.mark.parametrize(("world", "op"), [(2, "sum"), (3, "mean"), (5, "sum"), (5, "mean")])
@pytest.mark.parametrize("kind", ["normal", "spread", "tiny", "zeros"])
def test_the_error_is_below_what_was_asked_and_what_is_reported(world: int, kind: str, op: str) -> None:
    given = np.stack([contribution(r, 5000, kind) for r in range(world)]).astype(np.float64)
    exact = given.sum(0) / (world if op == "mean" else 1)
    norms = np.linalg.norm(given, axis=1).sum() / (world if op == "mean" else 1)
    each = [0.5, 0.1, 0.03, 0.01, 1e-3, 1e-5, 1e-7, 1e-9]
    for most, found in zip(each, reduced_by_each(world, each, kind, op), strict=True):
        first = found[0]
        for one in found:
            assert one.result.tobytes() == first.result.tobytes()
            assert (one.codec, one.algorithm, one.bound, one.error) == (
                first.codec,
                first.algorithm,
                first.bound,
                first.error,
            )
        assert np.linalg.norm(first.result - exact) <= first.error * norms, most
        assert first.error <= first.bound * (1 + 1e-9), most
        assert first.bound <= most or (first.codec is None and most < 1e-6)


def in_16_bits(world: int, given: Any, *each: float, **how: Any) -> list[Bounded]:
    """What rank 0 found, of each max_rel_err."""

    def body(comm: Communicator) -> Any:
        slow(comm)
        return [comm.all_reduce(given[comm.rank].clone(), max_rel_err=most, **how) for most in each]

    return run_ranks(world, body)[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("codec", [None, "int8", "bf16", "fp16"])
@pytest.mark.parametrize(("world", "op"), [(2, "mean"), (8, "sum")])
def test_sums_of_16_bits_round_within_the_bound(dtype: str, codec: str | None, world: int, op: str) -> None:
    """What each rank but the first adds is less than half of the sum's last place."""
    torch = pytest.importorskip("torch")
    large = 2048.0 if dtype == "float16" else 256.0
    given = [torch.full([5000], large if r == 0 else 0.49, dtype=getattr(torch, dtype)) for r in range(world)]
    norms = sum(float(x.double().norm()) for x in given)
    exact = sum(x.double() for x in given) / (world if op == "mean" else 1)
    norms /= world if op == "mean" else 1
    each = (0.0163, 0.1)
    for most, found in zip(each, in_16_bits(world, given, *each, codec=codec, op=op), strict=True):
        error = float((found.result.double() - exact).norm()) / norms
        assert error <= found.error <= found.bound
        assert found.bound <= most or found.codec is None


@pytest.mark.parametrize("codec", [None, "int8", "fp16", "fixed:1"])
@pytest.mark.parametrize("world", [2, 4])
def test_sums_beyond_16_bits_travel_as_they_are(codec: str | None, world: int) -> None:
    torch = pytest.importorskip("torch")
    given = [torch.full([5000], 40000.0, dtype=torch.float16)] * world
    for found in in_16_bits(world, given, 0.1, codec=codec):
        assert found.codec is None and bool(found.result.isinf().all())
        assert found.bound == found.error == math.inf


@pytest.mark.parametrize(("value", "bound"), [(3e38, math.inf), (1e38, 1e-6)])
def test_a_sum_that_may_leave_the_dtype_is_promised_nothing(value: float, bound: float) -> None:
    """Of a mean too, whose result would fit: not every algorithm sums in more bits."""
    x = np.full(1000, value, np.float32)
    for found in run_ranks(3, lambda comm: comm.all_reduce(x.copy(), "mean", max_rel_err=1e-9)):
        assert found.codec is None and found.error <= found.bound <= bound
        assert (found.bound == math.inf) == (bound == math.inf)


def test_alone_nothing_is_lost() -> None:
    (found,) = reduced(1, 0.1)
    assert (found.codec, found.bound, found.error) == (None, 0.0, 0.0)


@pytest.mark.parametrize("world", [1, 2])
def test_products_round_within_the_bound(world: int) -> None:
    """Some of what they make is below the least normal number."""

    def body(comm: Communicator) -> Bounded:
        x = contribution(comm.rank, 5000, "tiny")
        return comm.all_reduce(x, "premul_sum", scale=1 / 3, max_rel_err=1e-9)

    found = run_ranks(world, body)[0]
    given = [contribution(rank, 5000, "tiny").astype(np.float64) / 3 for rank in range(world)]
    norms = sum(np.linalg.norm(x) for x in given)
    error = np.linalg.norm(found.result - sum(given)) / norms
    assert 0 < error <= found.error <= found.bound < 1e-6


def test_what_a_factor_is_rounded_by_counts() -> None:
    """It is multiplied by in float32."""

    def body(comm: Communicator) -> list[bool]:
        held = []
        for seed in range(50):
            factor, value = np.random.default_rng(seed).uniform(1, 2, 2)
            x = np.full(100, value, np.float32)
            found = comm.all_reduce(x.copy(), "premul_sum", scale=float(factor), max_rel_err=0.5)
            exact = x.astype(np.float64) * factor
            held.append(np.linalg.norm(found.result - exact) <= found.error * np.linalg.norm(exact))
        return held

    assert all(run_ranks(1, body)[0])


def test_products_that_are_rounded_up_fit_the_codec() -> None:
    """63.49 is 63.5 in float16, 64 of fixed's steps, and 63 are all that a byte holds of two ranks."""

    def body(comm: Communicator) -> Any:
        comm.set_links(links_of(SLOW))
        x = np.full(200_000, comm.rank, np.float16)
        return comm.all_reduce(x, "premul_sum", scale=63.49, codec="fixed:0.5", max_rel_err=0.5).result[-1]

    assert run_ranks(2, body) == [63.5] * 2


def test_calls_alike_have_few_specs() -> None:
    def body(comm: Communicator) -> int:
        slow(comm)
        for seed in range(20):
            x = np.random.default_rng([comm.rank, seed]).standard_normal(5000).astype(np.float32)
            comm.all_reduce(x, max_rel_err=0.001)
        return len({row["codec"] for row in comm.tuning()})

    assert max(run_ranks(2, body)) <= 2


@pytest.mark.parametrize("world", [3, 5])
def test_the_bound_holds_where_latency_decides(world: int) -> None:
    def body(comm: Communicator) -> Bounded:
        comm.set_links(_core.Links("switch", alpha=1e-6, lambda_=1e-2, beta=1e-8))
        return comm.all_reduce(contribution(comm.rank, 5000, "normal"), "mean", max_rel_err=0.01)

    for one in run_ranks(world, body):
        assert one.error <= one.bound <= 0.01


def test_a_smaller_error_costs_more_bytes() -> None:
    """Of all ranks together: the ends of a chain send less."""
    sent = [sum(one.bytes_sent for one in reduced(4, most)) for most in (0.5, 0.05, 1e-3, 1e-9)]
    assert sent == sorted(sent)
    assert sent[0] < sent[-1] / 6


@pytest.mark.parametrize(("rate", "coded"), [(SLOW, True), (FAST, False)])
def test_elements_travel_as_they_are_where_that_is_cheaper(rate: float, coded: bool) -> None:
    def body(comm: Communicator) -> Bounded:
        comm.set_links(links_of(rate))
        return comm.all_reduce(contribution(comm.rank, 1 << 18, "normal"), max_rel_err=0.1)

    for one in run_ranks(2, body):
        assert (one.codec is not None) is coded
        assert (one.error > 2.0**-22) is coded


def test_one_codec_only_out_and_scale() -> None:
    def body(comm: Communicator) -> Any:
        comm.set_links(links_of(SLOW))
        x = contribution(comm.rank, 5000, "normal")
        out = np.empty_like(x)
        scale = comm.rank - 2.0
        found = comm.all_reduce(x, "premul_sum", out=out, scale=scale, max_rel_err=0.2, codec="int8")
        assert (x == contribution(comm.rank, 5000, "normal")).all()
        assert found.result is out
        return found

    found = run_ranks(2, body)
    given = [contribution(r, 5000, "normal").astype(np.float64) * (r - 2.0) for r in range(2)]
    norms = sum(np.linalg.norm(x) for x in given)
    assert found[0].codec == "int8"
    assert np.linalg.norm(found[0].result - sum(given)) <= found[0].error * norms + 1e-3


@pytest.mark.parametrize(
    ("codec", "odd"),
    [
        (None, {"max_rel_err": 0.101}),
        ("int4", {"max_rel_err": 0.1, "codec": "int8"}),
        (None, {"max_rel_err": 0.1, "codec": "int8"}),
        ("bf16", {"max_rel_err": 0.1, "codec": "mpc"}),
    ],
)
def test_ranks_that_say_something_else_are_told(codec: str | None, odd: dict[str, Any]) -> None:
    """Codecs of blocks of other sizes, too."""

    def body(comm: Communicator) -> bool:
        x = contribution(comm.rank, 5000, "normal")
        how = odd if comm.rank == 1 else {"max_rel_err": 0.1, "codec": codec}
        with pytest.raises(MismatchError, match=rf"rank {comm.rank} of 3 has max_rel_err=0\.1"):
            comm.all_reduce(x, **how)
        untouched = bool((x == contribution(comm.rank, 5000, "normal")).all())
        comm.barrier()
        return untouched

    assert run_ranks(3, body) == [True] * 3


def test_what_is_not_finite_travels_as_it_is() -> None:
    def body(comm: Communicator) -> Bounded:
        comm.set_links(links_of(SLOW))
        x = np.ones(5000, np.float32)
        x[7] = np.inf if comm.rank else 1
        return comm.all_reduce(x, max_rel_err=0.1, segments="auto")  # as None

    for one in run_ranks(2, body):
        assert one.codec is None
        assert one.result[7] == np.inf


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("above 0, got 0", {"max_rel_err": 0}),
    ("above 0, got nan", {"max_rel_err": float("nan")}),
    ("for op sum, mean, premul_sum, got 'max'", {"op": "max"}),
    ("async_op does not go with", {"async_op": True}),
    ("algorithm does not go with", {"algorithm": "ring"}),
    ("error does not go with", {"error": np.zeros(10, np.float32)}),
    (r"unknown codec 'gzip'.*\(rank \d of 2\)", {"codec": "gzip"}),
]


@pytest.mark.parametrize(("sentence", "how"), REFUSED)
def test_what_does_not_fit_is_refused(sentence: str, how: dict[str, Any]) -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(InvalidArgumentError, match=sentence):
            comm.all_reduce(np.ones(10, np.float32), **{"max_rel_err": 0.1, **how})
        with pytest.raises(UnsupportedTypeError, match="got int32"):
            comm.all_reduce(np.ones(10, np.int32), max_rel_err=0.1)
        with pytest.raises(InvalidArgumentError, match="for one array, not for a list"):
            comm.all_reduce([np.ones(10, np.float32)], max_rel_err=0.1)

    run_ranks(2, body)


@pytest.mark.parametrize("most", [0.05, 1e-9])
def test_bytes_of_other_calls_are_not_counted(most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread makes them meanwhile: a collective, and messages between two ranks."""

    def sent() -> list[int]:
        def body(comm: Communicator) -> Any:
            slow(comm)  # else segments, and their headers, go by what is measured
            return comm.all_reduce(
                contribution(comm.rank, 5000, "normal"), max_rel_err=most, codec="int8"
            ).bytes_sent

        return run_ranks(2, body)

    alone, summed = sent(), bounded._summed

    def others(comm: Communicator) -> None:
        message = comm.send(np.ones(5000), 1 - comm.rank, async_op=True)
        comm.recv(np.ones(5000), 1 - comm.rank)
        message.wait()
        comm.all_reduce(np.ones(1 << 16, np.float32), algorithm="ring")

    def beside(comm: Communicator, *how: Any) -> Any:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(others, comm).result()
        return summed(comm, *how)

    monkeypatch.setattr(bounded, "_summed", beside)
    assert sent() == alone
    assert all(alone)


def test_what_is_counted_is_what_the_transport_has_sent() -> None:
    def body(comm: Communicator) -> Any:
        comm.set_links(links_of(SLOW))
        before = comm.stats()["bytes_sent"]
        report = comm.all_reduce(contribution(comm.rank, 5000, "normal"), max_rel_err=0.05)
        with _core.Meter() as outer:
            comm.barrier()
            with _core.Meter() as inner:
                comm.all_reduce(np.ones(1000, np.float32), algorithm="ring")
            within = inner.bytes_sent
            comm.all_reduce(np.ones(1000, np.float32), algorithm="ring")
        comm.all_reduce(np.ones(1000, np.float32), algorithm="ring")
        counted = report.bytes_sent + outer.bytes_sent + 2 * within
        return counted, comm.stats()["bytes_sent"] - before, within, outer.bytes_sent

    for counted, sent, within, around in run_ranks(2, body):
        assert counted == sent
        assert within == 4000 == around  # of the barrier nothing
