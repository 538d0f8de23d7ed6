"""all_reduce with max_rel_err on arrays of a device: the promise of host memory, in the order of streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from codec_samples import narrow, widen
from on_device import Racing, stream_of
from ranks import outcomes_of, run_ranks
from test_bounded import REFUSED, contribution

from gpucomm import Communicator, _core
from gpucomm.errors import (
    CollectiveTimeoutError,
    InvalidArgumentError,
    MismatchError,
    UnavailableError,
    UnsupportedTypeError,
)


def reduced(
    kit: Any, world: int, most: float, x_of: Any, op: str = "sum", dtype: str = "float32", **how: Any
) -> list[tuple[Any, Any]]:
    """By rank the report, and the values of its result."""

    def body(comm: Communicator) -> Any:
        with stream_of(kit) as stream:
            racing = Racing(kit, stream, dtype)
            x = racing.array(x_of(comm.rank))
            report = comm.all_reduce(x, op, max_rel_err=most, stream=stream, **how)
            return report, racing.found(racing.read(report.result))

    return run_ranks(world, body)


def check_promise(found: list[tuple[Any, Any]], given: Any, most: float, dtype: str = "float32") -> None:
    """`given`: the exact contributions."""
    first, values = found[0]
    norms = np.linalg.norm(given, axis=1).sum()
    error = np.linalg.norm(widen(dtype, values) - given.sum(0))
    for report, same in found:
        assert same.tobytes() == values.tobytes()
        for name in ("codec", "algorithm", "bound", "error"):
            assert getattr(report, name) == getattr(first, name)
    assert error <= first.error * norms
    assert first.error <= first.bound <= most


@pytest.mark.parametrize("most", [0.5, 0.03, 1e-3, 1e-5])
@pytest.mark.parametrize("world", [2, 5])
@pytest.mark.parametrize("kind", ["normal", "spread", "tiny", "zeros"])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_the_error_is_below_what_was_asked_and_what_is_reported(
    most: float, world: int, kind: str, op: str, make_kit: Any
) -> None:
    found = reduced(make_kit(20), world, most, lambda rank: contribution(rank, 5000, kind), op)
    given = np.stack([contribution(r, 5000, kind) for r in range(world)]).astype(np.float64)
    check_promise(found, given / (world if op == "mean" else 1), most)
    if kind == "normal" and most >= 0.03:
        assert found[0][0].codec is not None
    if kind == "zeros" or most < 1e-3:
        assert found[0][0].codec is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(dtype: str, make_kit: Any) -> None:
    def x_of(rank: int) -> Any:
        return narrow(dtype, contribution(rank, 5000, "normal"))

    found = reduced(make_kit(20), 3, 0.2, x_of, dtype=dtype)
    assert found[0][0].codec is not None
    check_promise(found, np.stack([widen(dtype, x_of(r)) for r in range(3)]), 0.2, dtype)


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("most", [0.5, 0.02])
def test_what_is_reported_is_what_the_encodings_lose(most: float, op: str, make_kit: Any) -> None:
    """As error= tells it of the same call in host memory; a message of several pieces."""
    world, count, kit = 3, 300_000, make_kit(20)

    def body(comm: Communicator) -> Any:
        x = contribution(comm.rank, count, "normal")
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            report = comm.all_reduce(racing.array(x), op, max_rel_err=most, stream=stream)
            found = racing.found(racing.read(report.result))
        lost, mine = np.empty_like(x), x.copy()
        how: Any = {"codec": report.codec, "algorithm": "coded_ring", "segments": 1, "error": lost}
        host = comm.all_reduce(mine, op, **how)
        norms = np.array([np.linalg.norm(v.astype(np.float64)) for v in (lost, x)])
        both = comm.all_reduce(norms, algorithm="one_shot")
        added_up = (1 + report.bound) * world * 2.0**-24
        return report.error, float(both[0] / both[1]) + added_up, np.array_equal(found, host)

    for error, expected, same in run_ranks(world, body):
        assert same
        assert error == pytest.approx(expected, rel=1e-6) and error > 0


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_norms_are_those_of_the_host_within_rounding(dtype: str, make_kit: Any) -> None:
    """By which the bound is rounded up."""
    count, kit, blocks = 300_001, make_kit(20), [1, 4, 128, 1024]
    values = narrow(dtype, contribution(0, count, "normal"))
    # NumPy has no bfloat16: there the host device stands for the host, whose functions it calls.
    device = _core.HostDevice()
    host = device.array(values, True) if dtype == "bfloat16" else values

    def body(comm: Communicator) -> Any:
        with stream_of(kit) as stream:
            racing = Racing(kit, stream, dtype)
            return comm._norms(racing.array(values), blocks, stream=stream), comm._norms(host, blocks)

    ((on_device, expected),) = run_ranks(1, body)
    assert on_device[:2] == expected[:2] == [dtype, count]
    assert on_device[2:] == pytest.approx(expected[2:], rel=count * 2.0**-53, abs=0)
    wide = widen(dtype, values)
    assert expected[2] == pytest.approx(np.linalg.norm(wide)) and expected[3] == np.abs(wide).max()


def test_several_devices(make_kit: Any) -> None:
    kits = [make_kit(50, index) for index in range(2)]

    def body(comm: Communicator) -> Any:
        kit = kits[comm.rank % 2]
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            x = racing.array(contribution(comm.rank, 5000, "normal"))
            report = comm.all_reduce(x, max_rel_err=0.1, stream=stream)
            return report, racing.found(racing.read(report.result))

    found = run_ranks(3, body)
    assert found[0][0].codec is not None
    check_promise(
        found, np.stack([contribution(r, 5000, "normal") for r in range(3)]).astype(np.float64), 0.1
    )


def test_alone_nothing_is_lost(make_kit: Any) -> None:
    ((report, values),) = reduced(make_kit(20), 1, 0.1, lambda rank: contribution(rank, 5000, "normal"))
    assert (report.codec, report.bound, report.error) == (None, 0.0, 0.0)
    assert values.tobytes() == contribution(0, 5000, "normal").tobytes()


def test_calls_alike_have_few_specs(make_kit: Any) -> None:
    kit = make_kit()

    def body(comm: Communicator) -> int:
        specs = set()
        for seed in range(20):
            x = np.random.default_rng([comm.rank, seed]).standard_normal(5000).astype(np.float32)
            specs.add(comm.all_reduce(kit.array(x), max_rel_err=0.001).codec)
        return len(specs)

    assert max(run_ranks(2, body)) <= 2


def test_the_cheapest_makes_the_fewest_bytes(make_kit: Any) -> None:
    kit = make_kit(20)
    found = [
        reduced(kit, 4, most, lambda rank: contribution(rank, 5000, "normal"))[0][0]
        for most in (1.0, 0.05, 1e-3, 1e-9)
    ]
    assert [report.bytes_sent for report in found] == sorted(report.bytes_sent for report in found)
    assert found[0].codec == "int4" and found[0].algorithm == "coded_ring"
    assert found[0].bytes_sent < found[-1].bytes_sent / 6
    assert (found[-1].codec, found[-1].algorithm) == (None, "auto")


def test_elements_travel_as_they_are_where_codes_are_longer(make_kit: Any) -> None:
    ((report, values), _) = reduced(make_kit(20), 2, 0.5, lambda rank: np.ones(3, np.float32))
    assert report.codec is None and values.tolist() == [2] * 3


def test_one_codec_only_out_and_scale(make_kit: Any) -> None:
    kit = make_kit(20)
    x_of = [contribution(rank, 5000, "normal") for rank in range(2)]

    def body(comm: Communicator) -> Any:
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            x, out = racing.array(x_of[comm.rank]), racing.empty(5000, np.float32)
            how: Any = {"codec": "int8", "stream": stream, "scale": comm.rank - 2.0}
            report = comm.all_reduce(x, "premul_sum", out=out, max_rel_err=0.2, **how)
            assert report.result is out
            readings = racing.read(out), racing.read(x)
            return report, *(racing.found(reading) for reading in readings)

    found = run_ranks(2, body)
    given = [x_of[r].astype(np.float64) * (r - 2.0) for r in range(2)]
    norms = sum(np.linalg.norm(x) for x in given)
    for rank, (report, values, x) in enumerate(found):
        assert report.codec == "int8"
        assert (x == x_of[rank]).all()
        assert np.linalg.norm(values - sum(given)) <= report.error * norms + 1e-3


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_travels_as_it_is(value: float, make_kit: Any) -> None:
    def x_of(rank: int) -> Any:
        x = np.ones(5000, np.float32)
        x[4999] = value if rank else 1
        return x

    for report, values in reduced(make_kit(20), 2, 0.1, x_of):
        assert report.codec is None
        assert not np.isfinite(values[4999]) and values[4998] == 2


@pytest.mark.parametrize(("sentence", "how"), REFUSED)
def test_what_does_not_fit_is_refused(sentence: str, how: dict[str, Any], make_kit: Any) -> None:
    kit = make_kit()

    def body(comm: Communicator) -> float:
        with pytest.raises(InvalidArgumentError, match=sentence):
            comm.all_reduce(kit.array(np.ones(10, np.float32)), **{"max_rel_err": 0.1, **how})
        with pytest.raises(UnsupportedTypeError, match=r"got int32 \(rank"):
            comm.all_reduce(kit.array(np.ones(10, np.int32)), max_rel_err=0.1)
        x = kit.array(np.ones(10, np.float32))
        return float(kit.host(comm.all_reduce(x, async_op=True).synchronize())[0])

    assert run_ranks(2, body) == [2.0] * 2


def test_other_sizes_are_a_mismatch(make_kit: Any) -> None:
    kit = make_kit()

    def body(comm: Communicator) -> None:
        comm.all_reduce(kit.array(np.ones(5000 + comm.rank, np.float32)), max_rel_err=0.1, codec="int8")

    for rank, error in enumerate(outcomes_of(2, body)):
        assert isinstance(error, MismatchError)
        assert f"rank {rank} of 2 has max_rel_err=0.1 for {5000 + rank} elements of float32" in str(error)


def test_the_host_waits_no_longer_than_it_may(make_kit: Any) -> None:
    """And what the device still writes then stays where it is."""
    kit = make_kit(200_000)

    def body(comm: Communicator) -> bool:
        with stream_of(kit) as stream:
            racing, values = Racing(kit, stream), contribution(comm.rank, 5000, "normal")
            comm.all_reduce(kit.array(values), max_rel_err=0.1, stream=stream)  # makes what calls keep
            x = [racing.array(values) for _ in range(8)][-1]  # not all pause briefly
            comm.barrier()
            with pytest.raises(CollectiveTimeoutError, match=r"has not ended after 0\.1 s"):
                comm.all_reduce(x, max_rel_err=0.1, stream=stream, timeout=0.1)
            racing.finish()
        return comm.closed

    assert run_ranks(2, body) == [False] * 2


READS = (
    lambda comm, x: comm._norms(x, [1]),
    lambda comm, x: comm.all_reduce(x, max_rel_err=0.5, codec="int8"),
    lambda comm, x: comm.all_reduce(x, codec="fixed:1e-2"),
)


def test_what_the_host_reads_comes_by_page_locked_memory(make_kit: Any) -> None:
    """Into other memory CUDA's copies block the host, whatever the deadline."""
    kit = make_kit(20)

    def body(comm: Communicator) -> list[int | None]:
        x, counts = kit.array(contribution(0, 5000, "normal")), []
        for read in READS:
            before = kit.enqueued("allocate_pinned")
            with comm.subset([0]) as own:
                read(own, x)
            counts.append(None if before is None else kit.enqueued("allocate_pinned") - before)
        return counts

    assert run_ranks(1, body)[0] in ([1, 1, 1], [None] * 3)


def test_later_reads_allocate_nothing(make_kit: Any) -> None:
    """CUDA may wait for all that it does when it gives memory, and when it takes memory back."""
    kit = make_kit(20)

    def body(comm: Communicator) -> list[int | None]:
        x, large = (kit.array(contribution(comm.rank, count, "normal")) for count in (5000, 1_000_000))
        allocated = []
        for _ in range(3):
            for read in READS:
                read(comm, x), read(comm, large)
            comm.barrier()
            allocated.append(kit.enqueued("allocate"))
            Racing(kit, 0).finish()
            comm.barrier()
        return allocated

    first, second, third = run_ranks(2, body)[0]
    assert first == second == third and first != 0


def test_emulated_links_are_refused(make_kit: Any) -> None:
    kit = make_kit()

    def body(comm: Communicator) -> None:
        comm.all_reduce(kit.array(np.ones(2, np.float32)), max_rel_err=0.1)

    for error in outcomes_of(2, body, links=_core.Links("switch", alpha=1e-5, beta=1e-9)):
        assert isinstance(error, UnavailableError) and "no emulated links" in str(error)
