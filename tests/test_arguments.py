"""Bad input: typed exceptions that also derive from the fitting built-in, with value, rule and rank."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from ranks import outcomes_of, run_ranks

import gpucomm
from gpucomm import Communicator, _core
from gpucomm.errors import (
    ClosedError,
    CollectiveTimeoutError,
    Error,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
    UnsupportedTypeError,
)

X = np.ones(4, np.float32)


def read_only() -> np.ndarray:
    x = np.ones(4)
    x.flags.writeable = False
    return x


BAD = [
    (lambda c: c.broadcast(X.copy(), 3), ValueError, r"root must be in \[0, 1\), got 3 \(rank 0 of 1\)"),
    (lambda c: c.gather(X, op="a"), TypeError, r"gather does not take .numpy.ndarray, op='a'.; it is ga"),
    (
        lambda c: c.all_reduce(X, segments=1 << 40),
        ValueError,
        "segments must be .* 32 bits, got 1099511627776",
    ),
    (lambda c: c.all_reduce(X, segments="é\ud800"), ValueError, r"segments must be .* got 'é\\ud800'"),
    (lambda c: c.all_reduce(X, mean=True), TypeError, r"all_reduce does not take .numpy.ndarray, mean=True."),
    (lambda c: c.gather(X, 1), ValueError, r"root must be in \[0, 1\), got 1"),
    (lambda c: c.scatter(X, 1), ValueError, r"root must be in \[0, 1\), got 1"),
    (lambda c: c.scatter(None), ValueError, "x must be an array on the root, rank 0; got None"),
    (lambda c: c.scatter(X, out=np.ones(3, "f4")), ValueError, "out must hold 4 elements of float32, got 3"),
    (lambda c: c.all_to_all(X, out=np.ones(3, "f4")), ValueError, "out must hold 4 elements of float32"),
    (lambda c: c.all_to_all(X, algorithm="ring"), ValueError, "offer all_to_all; those that do: direct"),
    (lambda c: c.all_gather(X, counts=[4, 4]), ValueError, "counts must have one entry per rank, 1; got 2"),
    (lambda c: c.all_gather(X, counts=[-4]), ValueError, "counts must not be negative, got -4 for rank 0"),
    (
        lambda c: c.all_gather(X, counts=[3]),
        ValueError,
        "the first extent of x at this rank's place, 4; got 3",
    ),
    (lambda c: c.gather(X, counts=[3]), ValueError, "the first extent of x at this rank's place, 4; got 3"),
    (
        lambda c: c.reduce_scatter(X, counts=[3]),
        ValueError,
        "add up to the first extent of x, 4; they give 3",
    ),
    (lambda c: c.all_to_all(X, counts=[5]), ValueError, "add up to the first extent of x, 4; they give 5"),
    (lambda c: c.all_to_all(X, counts=[]), ValueError, "counts must have one entry per rank, 1; got 0"),
    (lambda c: c.all_to_all(X, out_counts=[-1]), ValueError, "out_counts must not be negative, got -1"),
    (
        lambda c: c.all_to_all(np.ones((0, 8)), out_counts=[1 << 61]),
        ValueError,
        "out_counts add up to more than any memory holds",
    ),
    (
        lambda c: c.all_to_all(X, counts=[4], out_counts=[3]),
        ValueError,
        "counts and out_counts must be equal at this rank's own place, got 4 and 3",
    ),
    (lambda c: c.all_to_all(X, out=X, counts=[4]), ValueError, "x and out must be apart where counts"),
    (lambda c: c.all_to_all(X, out=np.ones(3, "f4"), counts=[4]), ValueError, "out must hold 4 elements"),
    (lambda c: c.reduce(X.copy(), -1), ValueError, r"root must be in \[0, 1\), got -1"),
    (
        lambda c: c.all_reduce(X.copy(), algorithm="quantum"),
        ValueError,
        "unknown algorithm 'quantum'; known: .*ring",
    ),
    (
        lambda c: c.broadcast(X.copy(), algorithm="ring"),
        ValueError,
        "'ring' does not offer broadcast; those that do",
    ),
    (lambda c: c.all_reduce(X.copy(), op="median"), ValueError, "unknown op 'median'; known: sum, mean"),
    (lambda c: c.all_reduce(X.copy(), op="su\0m"), ValueError, r"unknown op 'su\\0m'; known: sum, mean"),
    (lambda c: c.all_reduce(X.copy(), segments=0), ValueError, r"segments must be in \[1, 4096\], got 0"),
    (
        lambda c: c.all_reduce(X.copy(), timeout=-1),
        ValueError,
        "timeout must be a positive, finite number of seconds, got -1",
    ),
    (lambda c: c.all_reduce(X.copy(), timeout=float("nan")), ValueError, "timeout must be a positive"),
    (lambda c: c.all_reduce(X.copy(), timeout=True), ValueError, "timeout must be .* got True"),
    (lambda c: c.all_reduce([X.copy()], timeout=np.True_), ValueError, "timeout must be .* got (np.)?True"),
    (lambda c: c.gather(X, timeout="5"), ValueError, "timeout must be .* got '5'"),
    *(
        (lambda c, bad=bad: c.sendrecv(X, 0, X.copy(), 0, timeout=bad), ValueError, "timeout must be a posi")
        for bad in (float("nan"), float("inf"), 0, -1, True)
    ),
    *(
        (lambda c, bad=bad: c.all_reduce(X.copy(), async_op=True).wait(bad), ValueError, "timeout must be a")
        for bad in (float("nan"), float("inf"), 0, -1, True, "5")
    ),
    (lambda c: c.barrier(timeout=0), ValueError, "a positive, finite number of seconds, got 0"),
    (lambda c: c.all_reduce([1, 2]), TypeError, r"x\[0\] must be an array that speaks DLPack .*, got int"),
    (lambda c: c.all_reduce(None), TypeError, "got NoneType"),
    (lambda c: c.all_reduce(np.ones((4, 4))[:, 1]), TypeError, "x must be C-contiguous"),
    (lambda c: c.all_reduce(read_only()), TypeError, "x is read-only: pass out="),
    (
        lambda c: c.all_reduce(np.ones(3, np.complex64)),
        TypeError,
        "complex64 arrays cannot be reduced, only moved",
    ),
    (lambda c: c.all_reduce(np.ones(3, bool), op="mean"), TypeError, "'mean' is not defined for bool"),
    (
        lambda c: c.all_reduce(X.copy(), op="bxor"),
        TypeError,
        "'bxor' is not defined for float32 arrays, only for integers and bool",
    ),
    (
        lambda c: c.reduce(np.ones(3, int), op="premul_sum", scale=2.0),
        TypeError,
        "'premul_sum' is not defined for int64 arrays, only for floats",
    ),
    (lambda c: c.reduce_scatter(X, "premul_sum"), ValueError, "op 'premul_sum' needs scale"),
    (
        lambda c: c.all_reduce(X, "premul_sum", scale=1e39),
        ValueError,
        r"scale is rounded to float32 .*, got 1e\+39",
    ),
    (
        lambda c: c.all_reduce(X, "premul_sum", scale=1e-46),
        ValueError,
        "scale is rounded to float32 .*, got 1e-46",
    ),
    (
        lambda c: c.all_reduce(X.copy(), scale=2.0),
        ValueError,
        "scale is only for op 'premul_sum', got op 'sum'",
    ),
    (lambda c: c.all_reduce(np.array(["a"])), TypeError, "cannot be read"),
    (lambda c: c.all_reduce(np.ma.array(X, mask=X > 0)), TypeError, "x is a masked array"),
    (
        lambda c: c.all_reduce(X, out=np.ones(5, np.float32)),
        ValueError,
        "out must hold 4 elements of float32, got 5",
    ),
    (
        lambda c: c.all_reduce(X, out=np.ones(4)),
        ValueError,
        "out must hold 4 elements of float32, got 4 of float64",
    ),
    (lambda c: c.all_reduce(X, out=read_only().astype("f4")[:0]), ValueError, "got 0"),
    (lambda c: c.set_links("switch:1Gbit"), ValueError, "links must be a model, .* got 'switch:1Gbit'"),
    (
        lambda c: c.set_links(_core.Links("switch", betas=[1e-9] * 4)),
        ValueError,
        "betas must have an entry for each of 1 ranks, got 4",
    ),
    (
        lambda c: c.gather_objects(1, root="x"),
        ValueError,
        r"root must be a whole number in \[0, 1\), got 'x'",
    ),
    (
        lambda c: c.gather_objects(1, root=1.0),
        ValueError,
        r"root must be a whole number in \[0, 1\), got 1.0",
    ),
]


@pytest.mark.parametrize(("call", "builtin", "sentence"), BAD)
def test_bad_arguments(alone, call, builtin, sentence):
    with pytest.raises(builtin, match=sentence) as caught:
        call(alone)
    assert isinstance(caught.value, Error)
    assert str(caught.value).endswith("(rank 0 of 1)")
    assert alone.all_reduce(np.ones(2))[0] == 1, "a bad argument must not close the communicator"


def test_overlapping_buffers_are_refused():
    def body(comm):
        whole = np.ones(10, np.float32)
        with pytest.raises(InvalidArgumentError, match="overlap"):
            comm.all_reduce(whole[:8], out=whole[2:])
        with pytest.raises(InvalidArgumentError, match="overlap"):
            comm.all_gather(whole[1:4], out=whole[:6])
        with pytest.raises(InvalidArgumentError, match="overlap"):
            comm.all_gather(whole[1:9], out=whole[:8], counts=[8 * (rank == comm.rank) for rank in range(2)])
        with pytest.raises(InvalidArgumentError, match="overlap"):
            comm.reduce_scatter(whole[:8], out=whole[2:6])
        with pytest.raises(InvalidArgumentError, match="overlap"):
            comm.gather(whole[1:4], comm.rank, out=whole[:6])
        with pytest.raises(InvalidArgumentError, match="overlap"):
            comm.scatter(whole[:8], comm.rank, out=whole[2:6])
        with pytest.raises(InvalidArgumentError, match="overlap"):
            comm.all_to_all(whole[:8], out=whole[2:])
        for call in (comm.reduce_scatter, comm.scatter, comm.all_to_all):
            with pytest.raises(InvalidArgumentError, match="multiple of the world, 2; got shape"):
                call(np.ones((3, 2)))
        with pytest.raises(InvalidArgumentError, match="out is needed where x is None"):
            comm.scatter(None, 1 - comm.rank)

    run_ranks(2, body)


@pytest.mark.parametrize("x", [np.ones((0, 3)), np.full((), 3.0), np.ones((2, 0, 4), np.int8)])
def test_empty_and_0d_arrays(x):
    def body(comm):
        result = comm.all_reduce(x.copy(), op="max")
        return result.shape == x.shape and np.array_equal(result, x)

    assert run_ranks(3, body) == [True] * 3


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (lambda c: c.all_reduce(np.ones(4)), lambda c: c.all_reduce(np.ones(5)), ("4 float64", "5 float64")),
        (
            lambda c: c.all_reduce(np.ones(4)),
            lambda c: c.all_reduce(np.ones(4, "f4")),
            ("float64", "float32"),
        ),
        (
            lambda c: c.all_reduce(np.ones(4)),
            lambda c: c.all_reduce(np.ones(4), op="max"),
            ("sum of", "max of"),
        ),
        (
            lambda c: c.all_reduce(np.ones(4)),
            lambda c: c.all_reduce(np.ones(4), op="premul_sum", scale=1.0),
            ("(sum of", "premul_sum of"),
        ),
        (
            lambda c: c.all_reduce(np.ones(4)),
            lambda c: c.all_gather(np.ones(4)),
            ("all_reduce", "all_gather"),
        ),
        (lambda c: c.reduce(np.ones(4), 0), lambda c: c.reduce(np.ones(4), 1), ("root 0", "root 1")),
        (lambda c: c.gather(np.ones(4), 0), lambda c: c.gather(np.ones(4), 1), ("root 0", "root 1")),
        (lambda c: c.scatter(np.ones(3), 0), lambda c: c.scatter(np.ones(6), 0), ("3 float64", "6 float64")),
        (lambda c: c.all_to_all(np.ones(3)), lambda c: c.all_to_all(np.ones(6)), ("3 float64", "6 float64")),
        (
            lambda c: c.all_gather(np.ones(c.rank), counts=[0, 1, 2]),
            lambda c: c.all_gather(np.ones(c.rank + 1), counts=[1, 2, 3]),
            ("3 float64 in uneven counts", "6 float64 in uneven counts"),
        ),
        (
            lambda c: c.reduce_scatter(np.ones(6), counts=[1, 2, 3]),
            lambda c: c.reduce_scatter(np.ones(6), counts=[3, 2, 1]),
            ("sum of 6 float64 in uneven counts of digest",),
        ),
        (
            lambda c: c.all_to_all(np.ones(3), counts=[1, 1, 1], out_counts=[1, 1, 1]),
            lambda c: c.all_to_all(np.ones(3)),
            ("uneven float64", "3 float64"),
        ),
        (lambda c: c.barrier(), lambda c: c.all_reduce(np.ones(1 << 20)), ("barrier #1", "1048576 float64")),
        (
            lambda c: c.all_reduce(np.ones(4), algorithm="ring"),
            lambda c: c.all_reduce(np.ones(4), algorithm="direct"),
            ("algorithm ring", "algorithm direct"),
        ),
        (  # alike but for their last characters
            lambda c: c.all_gather(np.ones(4, np.float32), codec="fixed:1.2345678901234567e-05:32:1234567"),
            lambda c: c.all_gather(np.ones(4, np.float32), codec="fixed:1.2345678901234567e-05:32:1234568"),
            (
                "codec fixed:1.2345678901234568e-05:32:1234567",
                "codec fixed:1.2345678901234568e-05:32:1234568",
            ),
        ),
    ],
)
@pytest.mark.parametrize("odd", [0, 2])
def test_a_mismatch_is_an_error_on_every_rank_and_names_both_calls(first, second, named, odd):
    def body(comm):
        comm.set_links(_core.Links())
        (second if comm.rank == odd else first)(comm)
        comm.barrier()

    for outcome in outcomes_of(3, body):
        assert isinstance(outcome, (MismatchError, ClosedError)), outcome
        assert isinstance(outcome, RuntimeError)
        assert all(name in str(outcome) for name in named), outcome


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        (
            {"algorithm": "ring"},
            {},
            ["preparation of all_reduce #1 (sum of 100 float32, algorithm auto)", "ring"],
        ),
        ({"codec": "int8"}, {}, ["float32, codec int8, algorithm auto)", "float32, algorithm auto)"]),
        ({"op": "max"}, {}, ["(max of 100 float32, algorithm auto)", "(sum of 100 float32, algorithm auto)"]),
    ],
)
def test_first_calls_are_named_where_the_links_are_measured_before_them(one, other, named):
    def body(comm):
        comm.all_reduce(np.ones(100, np.float32), **(other if comm.rank else one))

    for outcome in outcomes_of(2, body):
        assert isinstance(outcome, MismatchError)
        for words in named:
            assert words in str(outcome)


@pytest.mark.parametrize("codec", [None, "int8"])
def test_threads_of_a_rank_may_make_the_same_first_calls(monkeypatch, codec):
    """One of them measures; its calls are of other sizes than theirs, which wait."""
    monkeypatch.setenv("GPUCOMM_CACHE", "off")

    def body(comm):
        def call():
            for _ in range(20):
                results.append(comm.all_reduce(np.ones(50, np.float32), codec=codec))

        results = []
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # "auto" tries several algorithms meanwhile, and a codec's last bits are not those of all
        return len(results), all((abs(x - comm.world) <= (0.01 if codec else 0)).all() for x in results)

    assert run_ranks(2, body) == [(80, True)] * 2


@pytest.mark.parametrize("sent", [0, 1, 3, 70_000])
def test_an_exchange_whose_counts_do_not_fit_is_an_error_on_every_rank(sent):
    def body(comm):
        counts = [2, 2, 2]
        counts[2] = sent if comm.rank == 0 else 2  # rank 2 expects two
        comm.all_to_all(np.ones(sum(counts)), counts=counts, out_counts=[2, 2, 2])
        comm.barrier()

    for outcome in outcomes_of(3, body):
        assert isinstance(outcome, (MismatchError, ClosedError)), outcome
        assert "rank 2 of 3 expects 2 elements from rank 0 in all_to_all #" in str(outcome)
        assert f", which sends {sent}" in str(outcome)


def test_roots_that_both_send_are_noticed_at_the_next_call():
    def body(comm):
        comm.broadcast(np.ones(4), comm.rank, algorithm="direct")
        comm.barrier()

    assert all(isinstance(outcome, (MismatchError, ClosedError)) for outcome in outcomes_of(2, body))


def test_a_missing_rank_is_named_by_all():
    def body(comm):
        if comm.rank == 2:
            waiting.wait(20)
            return None
        try:
            comm.all_reduce(np.ones(1000), algorithm="ring", timeout=0.5)
        except CollectiveTimeoutError as error:
            return str(error), comm.closed
        finally:
            if comm.rank == 0:
                waiting.set()

    waiting = threading.Event()
    for text, closed in run_ranks(3, body)[:2]:
        assert "timed out after 0.5 s" in text and "missing: 2" in text and "all_reduce #1" in text
        assert closed


def test_a_wait_has_its_own_deadline():
    def body(comm):
        if comm.rank == 1:
            waiting.wait(20)
            return None
        work = comm.all_reduce(np.ones(1000), algorithm="ring", async_op=True)
        try:
            with pytest.raises(InvalidArgumentError, match="finite number of seconds, got 'a'"):
                work.wait("a")
            with pytest.raises(TimeoutError, match=r"timed out after 0\.3 s"):
                work.wait(timeout=0.3)
            with pytest.raises(CollectiveTimeoutError):
                work.wait()
        finally:
            waiting.set()

    waiting = threading.Event()
    run_ranks(2, body)


def test_after_a_fault_every_call_says_so():
    def body(comm):
        comm.set_links(_core.Links())
        with pytest.raises(MismatchError):
            comm.all_reduce(np.ones(3 + comm.rank), algorithm="ring")
        with pytest.raises(ClosedError, match=r"closed after a fault: .*all_reduce"):
            comm.barrier()
        assert comm.closed

    run_ranks(2, body)


def test_after_close_every_call_says_so():
    def body(comm):
        comm.barrier()
        comm.close()
        comm.close()
        with pytest.raises(ClosedError, match="this communicator is closed"):
            comm.all_reduce(np.ones(1), algorithm="ring")
        x = np.ones(1)
        with pytest.raises(ClosedError):
            comm.all_reduce(x, "premul_sum", scale=3.0, algorithm="ring")
        assert x[0] == 1

    run_ranks(2, body)


def test_who_leaves_is_named_by_who_waits():
    def body(comm):
        if comm.rank == 1:
            return
        with pytest.raises(
            PeerLostError, match="rank 1 has closed its communicator while rank 0 of 2 waits in"
        ) as caught:
            comm.all_reduce(np.ones(10), algorithm="ring", timeout=10)
        assert isinstance(caught.value, ConnectionError)

    run_ranks(2, body)


def test_a_call_keeps_its_communicator_until_it_was_waited_for():
    def body(comm):
        for count in (10, 300_000):
            x = np.full(count, comm.rank + 1.0)
            group = comm.split(0)
            kept = weakref.ref(group)
            work = group.all_reduce(x, async_op=True, algorithm="ring")
            del group
            assert (work.wait() == 3).all()
            assert kept() is None

    run_ranks(2, body)


def test_closing_with_calls_under_way_fails_them():
    def body(comm):
        if comm.rank == 1:
            started.wait(20)
            return
        work = comm.all_reduce(np.ones(10), algorithm="ring", async_op=True)
        comm.close()
        started.set()
        with pytest.raises(ClosedError, match="closed before this call had finished"):
            work.wait()

    started = threading.Event()
    run_ranks(2, body)


def test_a_child_of_fork_is_refused(alone):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            alone.all_reduce(np.ones(1))
            os.write(writer, b"no error")
        except ClosedError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"does not survive fork" in os.read(reader, 1000)
    os.close(reader)
    os.close(writer)


def test_constructor_arguments():
    region = _core.Region(2)
    for arguments, sentence in [
        (
            ("carrier_pigeon", 0, 2),
            "unknown transport 'carrier_pigeon'; known: c10d, emulated, local, mpi, shm",
        ),
        (("local", 2, 2), r"rank must be in \[0, 2\), got 2"),
        (("local", 0, 0), "world must be at least 1"),
        (("shm", 0, 2), "needs the file descriptor"),
    ]:
        with pytest.raises(InvalidArgumentError, match=sentence):
            Communicator(*arguments, region=region)
    with pytest.raises(MismatchError, match="was not made for a world of 3"):
        Communicator("local", 0, 3, region=region)
    with pytest.raises(UnsupportedTypeError):
        Communicator("local", 0, 1, region=_core.Region(1)).all_reduce(3)


class Name(str):
    """A str that is not exactly one."""


@pytest.mark.parametrize(
    "keywords",
    [
        {"op": Name("max")},
        {"op": "max", "segments": np.int64(1), "timeout": 5},
        {"op": "max", "segments": None, "timeout": None, "async_op": False, "algorithm": Name("direct")},
        {"op": "max", "scale": None, "out": np.zeros(3)},
    ],
)
def test_unusual_keywords_of_the_quick_call(alone, keywords):
    """all_reduce parses the usual ones itself and leaves all others to pybind11."""
    assert alone.all_reduce(np.arange(3.0), **keywords).tolist() == [0, 1, 2]
    work = alone.all_reduce(np.arange(3.0), "max", async_op=True)
    assert work.wait().tolist() == [0, 1, 2]
    for arguments, wrong in [((), {}), ((np.zeros(1), "sum", 3), {}), ((np.zeros(1),), {"colour": "red"})]:
        with pytest.raises(TypeError, match="all_reduce does not take"):
            alone.all_reduce(*arguments, **wrong)
    assert alone.all_reduce.__doc__ == _core.Communicator.all_reduce.__doc__


@pytest.mark.parametrize("how", [{"timeout": -1}, {"codec": "none"}, {"algorithm": "none"}])
def test_a_refused_call_has_not_multiplied(alone, how):
    x = np.ones(3)
    with pytest.raises(InvalidArgumentError):
        alone.all_reduce(x, "premul_sum", scale=100.0, **how)
    assert (x == 1).all()


@pytest.mark.parametrize(
    ("collective", "odd"),
    [
        ("all_reduce", {"algorithm": "linear_pipeline"}),
        ("all_reduce", {"op": "sum", "scale": None}),
        ("all_reduce", {"algorithm": "coded_ring", "codec": "int8"}),
        ("reduce", {"algorithm": "linear_pipeline"}),
        ("reduce", {"op": "max", "scale": None}),
    ],
)
@pytest.mark.parametrize("count", [3, 100_000])
def test_a_mismatch_has_not_multiplied(collective, odd, count):
    def body(comm):
        x, root = np.arange(count, dtype=np.float32), [0] if collective == "reduce" else []
        how = {"op": "premul_sum", "scale": 3.0, "algorithm": "direct"} | (odd if comm.rank else {})
        with pytest.raises(MismatchError, match="do not make the same call"):
            getattr(comm, collective)(x, *root, **how)
            comm.barrier()  # who only sends does not wait
        return (x == np.arange(count)).all()

    assert run_ranks(2, body) == [True, True]


def test_timeouts_may_be_longer_than_clocks_count(alone):
    assert alone.all_reduce(np.ones(3), timeout=1e30).tolist() == [1, 1, 1]
    run_ranks(2, lambda comm: comm.barrier(timeout=1e10))
    alone.broadcast_object(1, async_op=True).wait(timeout=1e30)


def test_a_timeout_without_end_is_none(alone):
    for call in (
        lambda: gpucomm.local(1, threads=True, timeout=math.inf),
        lambda: alone.broadcast_object(1, timeout=math.inf),
    ):
        with pytest.raises(InvalidArgumentError, match="positive, finite number of seconds, got inf"):
            call()


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("GPUCOMM_CMA", "a whole number from 0 to 2"),
        ("GPUCOMM_DEVICE_TRANSPORT", "auto, arena, nccl or staged"),
        ("GPUCOMM_HEAP_MIB", "a whole number from 0 to 100000000"),
        ("GPUCOMM_SPIN_US", "a whole number from 0 to 100000000"),
        ("GPUCOMM_SIMD", ""),
    ],
)
def test_a_setting_that_cannot_be_read_is_an_error(name, rule):
    program = "import gpucomm; gpucomm.init()"
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, name: "no"}, capture_output=True, text=True
    )
    assert ended.returncode and "InvalidArgumentError" in ended.stderr and name in ended.stderr
    assert not rule or f"{name}='no' must be {rule}" in ended.stderr


def test_a_cycle_through_a_communicator_is_collected():
    class Trainer:
        pass

    comm, trainer = Communicator("local", 0, 1, region=_core.Region(1)), Trainer()
    comm.trainer, trainer.comm = trainer, comm
    kept = weakref.ref(trainer)
    del comm, trainer
    gc.collect()
    assert kept() is None


LAST_CALL = """
import gpucomm
from gpucomm import Communicator, _core

class Logger:
    def __del__(self):
        try:
            self.comm.barrier()
        except Exception:
            pass

log = Logger()
log.comm = Communicator("local", 0, 1, region=_core.Region(1, None), timeout=5.0)
log.comm.close()
print("done")
"""


def test_a_call_that_is_refused_while_the_interpreter_ends_does_not_abort_it():
    done = subprocess.run([sys.executable, "-c", LAST_CALL], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
