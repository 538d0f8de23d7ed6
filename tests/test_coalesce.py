"""Lists of arrays: the same results as one call each, fewer messages, nothing held twice for long."""

from __future__ import annotations

import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import outcomes_of, run_ranks

import gpucomm
from gpucomm import Communicator, _core
from gpucomm.coalesce import CoalescedWork
from gpucomm.errors import (
    CollectiveTimeoutError,
    Error,
    InvalidArgumentError,
    MismatchError,
    UnsupportedTypeError,
)

MIB = 1 << 20


def in_a_group(comm, x):
    with comm.split(0) as group:
        return group.all_reduce(x[:5].copy(), algorithm="ring", segments=1)


def bounded(comm, x):
    """Coded or not goes by how long codecs took on a busy machine; ones are folded to 3 either way."""
    result = comm.all_reduce(x.copy(), max_rel_err=0.1).result
    assert np.abs(result - 3).max() <= 0.3
    return np.round(result)


@pytest.mark.parametrize(
    "call",
    [
        lambda comm, xs: comm.all_reduce(xs, algorithm="ring", segments=1),
        lambda comm, xs: comm.all_reduce(xs, algorithm="ring", segments=1, async_op=True).wait(),
        lambda comm, xs: [3.0 * x[0] for x in xs if comm.gather_objects(1) == [1] * 3],
        lambda comm, xs: [3.0 * x[0] for x in xs if comm.gather_objects(2, async_op=True).wait() == [2] * 3],
        lambda comm, xs: [bounded(comm, xs[0]) * n for n in (1, 100)],
        lambda comm, xs: [in_a_group(comm, xs[0]) * n for n in (1, 100)],
    ],
    ids=["list", "list later", "objects", "objects later", "bounded", "split"],
)
def test_calls_of_several_messages_from_threads_of_a_rank(call):
    """They are alike, so it does not matter whose comes first."""

    def body(comm):
        wrong = []

        def use():
            for _ in range(8):
                xs = [np.full(300_000, value, np.float32) for value in (1, 100)]
                for result, value in zip(call(comm, xs), (3, 300), strict=True):
                    wrong.extend(np.unique(result)[np.unique(result) != value].tolist())

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return wrong or not comm.closed

    assert run_ranks(3, body) == [True] * 3


def mixed(rank):
    """Arrays of several libraries, dtypes and shapes; two of them too large to be packed."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(rank)
    return [
        rng.integers(0, 9, (3, 4)).astype(np.float32),
        np.array(rank + 1.0),
        torch.full((5, 2), rank + 1, dtype=torch.bfloat16),
        np.zeros((0, 7), np.float32),
        rng.integers(0, 9, MIB // 4 + 1).astype(np.float32),
        rng.integers(0, 9, 1000).astype(np.int64),
        torch.full((7,), rank + 2, dtype=torch.bfloat16),
        rng.integers(0, 9, 1001).astype(np.int64),
        rng.integers(0, 9, (600, 512)).astype(np.float32),
        rng.integers(0, 9, 20_000).astype(np.float32),
    ]


def same(a, b):
    for x, y in zip(a, b, strict=True):
        assert type(x) is type(y) and x.shape == y.shape
        assert (x == y).all()


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize(
    ("collective", "how"),
    [("all_reduce", {}), ("all_reduce", {"op": "max"}), ("reduce", {"root": 0}), ("broadcast", {"root": 0})],
)
def test_a_list_gives_what_single_calls_give(world, async_op, collective, how):
    def body(comm):
        call = getattr(comm, collective)
        single = [call(x, **how) for x in mixed(comm.rank)]
        for kind in (list, tuple):
            xs = kind(mixed(comm.rank))
            got = call(xs, async_op=async_op, **how)
            if async_op:
                assert isinstance(got, CoalescedWork)
                assert got.wait(timeout=20) is xs and got.done() and got.result is xs
            else:
                assert got is xs
            same(xs, single)

    run_ranks(world, body)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("async_op", [False, True])
def test_a_list_is_gathered_as_single_arrays_are(world, async_op):
    def body(comm):
        xs, before = mixed(comm.rank), mixed(comm.rank)
        single = [comm.all_gather(x) for x in xs]
        for kind in (list, tuple):
            got = comm.all_gather(kind(xs), async_op=async_op)
            if async_op:
                assert isinstance(got, CoalescedWork)
                assert got.wait(timeout=20) is got.result
                got = got.result
            assert isinstance(got, list)
            same(got, single)
            same(xs, before)

    run_ranks(world, body)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce", "broadcast", "all_gather"])
def test_the_results_of_a_list_go_where_out_says(async_op, collective):
    pytest.importorskip("torch")

    def body(comm):
        how = {"root": comm.world - 1} if collective in ("reduce", "broadcast") else {}
        call, xs, before = getattr(comm, collective), mixed(comm.rank), mixed(comm.rank)
        gets = collective != "reduce" or comm.rank == comm.world - 1
        if collective == "all_gather":
            single = [call(x) for x in mixed(comm.rank)]
        else:
            single = [call(x, **how) for x in mixed(comm.rank)]
        outs = [x.clone() if hasattr(x, "clone") else x.copy() for x in single]
        for x in outs:
            x[...] = 77
        messages = comm.stats()["calls"]
        got = call(xs, out=outs, async_op=async_op, **how)
        messages = comm.stats()["calls"] - messages
        if async_op:
            if gets and comm.world > 1:
                with pytest.raises(InvalidArgumentError, match="still under way"):
                    comm.all_reduce(outs[0])
            got = got.wait(timeout=20)
        assert got is (outs if gets else xs)
        same(xs, before)
        if gets:
            same(outs, single)
        return messages

    for world in (1, 3):
        assert set(run_ranks(world, body)) == {6}  # a pack of each dtype, two large ones


@pytest.mark.parametrize("async_op", [False, True])
def test_a_list_is_received_without_one_to_send(async_op):
    def body(comm):
        xs = [np.full(3, 7.0), np.full(70_000, 8.0, np.float32)]
        outs = [np.zeros(3), np.zeros(70_000, np.float32)]
        got = comm.broadcast(xs if comm.rank == 1 else None, root=1, out=outs, async_op=async_op)
        assert (got.wait() if async_op else got) is outs
        same(outs, xs)
        if comm.rank == 1:
            with pytest.raises(
                InvalidArgumentError, match="x must be a list of arrays on the root, got None"
            ):
                comm.broadcast(None, root=1, out=outs)

    run_ranks(3, body)


def test_gathered_lists_share_messages_and_may_be_read_only():
    frozen = np.ones(5)
    frozen.flags.writeable = False

    def body(comm):
        before = comm.stats()["calls"]
        got = comm.all_gather([frozen, frozen, np.full(3, comm.rank)], algorithm="ring", segments=1)
        assert got[2].tolist() == [0, 0, 0, 1, 1, 1] and got[0].shape == (10,)
        assert comm.all_gather([]) == []
        return comm.stats()["calls"] - before

    assert run_ranks(2, body) == [2, 2]  # of two dtypes


def messages_of(comm, xs, **how):
    before = comm.stats()["calls"]
    comm.all_reduce(xs, algorithm="ring", segments=1, **how)
    return comm.stats()["calls"] - before


def test_small_arrays_share_messages():
    def body(comm):
        float32 = lambda n: np.ones(n, np.float32)  # noqa: E731
        return [
            messages_of(comm, []),
            messages_of(comm, [float32(9) for _ in range(500)]),
            messages_of(comm, [float32(9), np.ones(3), float32(9), np.ones(3)]),
            messages_of(comm, [float32(9), float32(MIB), float32(9)]),  # the large one by itself
            messages_of(comm, [float32(MIB // 4) for _ in range(4)]),  # 1 MiB each: one pack of 4 MiB
            messages_of(comm, [float32(MIB // 4) for _ in range(5)]),
        ]

    assert run_ranks(2, body) == [[0, 1, 2, 2, 1, 2]] * 2


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_what_the_messages_took_is_let_go(collective, async_op):
    """A blocking call: at once, so that it holds those of one pack; another one: when it was waited for."""
    xs = [np.ones(MIB // 8) for _ in range(32)]  # 32 MiB, in 8 packs
    outs = [np.ones_like(x) for x in xs]
    comm = Communicator("local", 0, 1, region=_core.Region(1))
    tracemalloc.start()
    try:
        handle = getattr(comm, collective)(xs, out=outs, async_op=async_op)
        if async_op:
            handle.wait()
        held, peak = (size / MIB for size in tracemalloc.get_traced_memory())
    finally:
        tracemalloc.stop()
    most = 8 if collective == "all_gather" else 4  # the pack, and those of all ranks
    assert held < 4.5 and (async_op or peak < most + 0.5), (held, peak)


def test_scale_and_many_lists_in_flight():
    def body(comm):
        lists = [[np.full(n, 1.0 + k) for n in (3, 50)] for k in range(20)]
        works = [comm.all_reduce(xs, op="premul_sum", scale=2.0, async_op=True) for xs in lists]
        for k, work in reversed(list(enumerate(works))):
            for x in work.wait():
                assert (x == 2.0 * comm.world * (1.0 + k)).all()

    run_ranks(2, body)


def test_what_is_alike_in_sum_but_not_in_parts_is_a_mismatch():
    def body(comm):
        sizes = (3, 5) if comm.rank else (5, 3)
        comm.all_reduce([np.ones(n) for n in sizes], algorithm="ring", segments=1)

    for outcome in outcomes_of(2, body):
        with pytest.raises(MismatchError, match=r"sum of 8 float64 packed of arrays of digest \w+"):
            raise outcome


def test_bad_lists_are_sentences_before_anything_is_sent():
    frozen = np.ones(2)
    frozen.flags.writeable = False
    x = np.ones(8)

    def body(comm):
        for call, error, sentence in [
            (
                lambda: comm.all_reduce([x, 1.0]),
                UnsupportedTypeError,
                r"x\[1\] must be an array .* got float",
            ),
            (lambda: comm.all_reduce([x, [x]]), UnsupportedTypeError, r"x\[1\] must be an array .* got list"),
            (lambda: comm.all_reduce([x, frozen]), UnsupportedTypeError, r"x\[1\] is read-only .rank"),
            (lambda: comm.all_reduce([x, x.astype(complex)]), UnsupportedTypeError, "cannot be reduced"),
            (lambda: comm.all_reduce([x[:5], x[4:]]), InvalidArgumentError, r"x\[0\] and x\[1\] overlap"),
            (lambda: comm.all_reduce([x], out=x), InvalidArgumentError, "out must be a list of arrays, as x"),
            (lambda: comm.all_reduce([x, x], out=[x]), InvalidArgumentError, "for each of the 2 of x, got 1"),
            (lambda: comm.all_gather([x], out=[x.copy()]), InvalidArgumentError, "must hold 16 elements"),
            (lambda: comm.all_reduce([x[:4]], out=[x[2:6]]), InvalidArgumentError, "x and out overlap, but"),
            (lambda: comm.all_reduce([x], out=[frozen]), UnsupportedTypeError, "out is read-only"),
            (
                lambda: comm.all_reduce([x[:2], x[2:4]], out=[x[4:6], x[5:7]]),
                InvalidArgumentError,
                "must be apart",
            ),
            (lambda: comm.all_gather([x], counts=[8, 8]), InvalidArgumentError, "counts is for one array"),
            (
                lambda: comm.all_gather([x, 1.0]),
                UnsupportedTypeError,
                r"x\[1\] must be an array .* got float",
            ),
            (lambda: comm.all_reduce([x, x[:0]], op="mena"), InvalidArgumentError, "unknown op 'mena'"),
            (lambda: comm.broadcast([x, x.copy()], root=9), InvalidArgumentError, "root must be in"),
        ]:
            with pytest.raises(error, match=sentence):
                call()
        return comm.stats()["bytes_sent"]

    assert run_ranks(2, body) == [0, 0]


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("count", [10, 300_000])  # in one message, and in one each
def test_no_result_of_a_list_lies_over_another_array_of_it(count, async_op):
    """Whose message may go later, and would send that result."""

    def body(comm):
        both = np.zeros(2 * count)
        a, b, free = both[:count], both[count:], np.zeros(2 * count)
        for collective, outs, said in [
            ("all_reduce", [b, a], r"out\[1\] overlaps x\[0\]"),
            ("broadcast", [b, free[:count]], r"out\[0\] overlaps x\[1\]"),
            ("all_gather", [both, free], r"out\[0\] overlaps x\[1\]"),
        ]:
            with pytest.raises(InvalidArgumentError, match=rf"{said}: .*rank . of 2"):
                getattr(comm, collective)([a, b], out=outs, async_op=async_op)
        assert comm.stats()["calls"] == 0
        a[:], b[:] = 1, 2
        work = comm.all_reduce([a, b], out=[a, free[:count]], async_op=async_op)
        same(work.wait() if async_op else work, [np.full(count, 2.0), np.full(count, 4.0)])

    run_ranks(2, body)


class Copying:
    """With what the array API promises and no more: no len, no reshape, and slices that are copies."""

    def __init__(self, array):
        self.array = array

    dtype = property(lambda self: self.array.dtype)
    shape = property(lambda self: self.array.shape)

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __getitem__(self, part):
        return Copying(self.array[part].copy())

    def __array_namespace__(self):
        class Namespace:
            empty = staticmethod(lambda shape, dtype: Copying(np.empty(shape, dtype)))

        return Namespace


@pytest.mark.parametrize("async_op", [False, True])
def test_lists_need_no_more_than_the_array_api_promises(async_op):
    def body(comm):
        def of(call, xs, **how):
            given = call([Copying(x) for x in xs], async_op=async_op, **how)
            return [x.array for x in (given.wait() if async_op else given)]

        for _ in range(2):  # the buffer of the pack is there then
            same(of(comm.all_reduce, [np.ones(2), np.ones((3, 2))]), [np.full(2, 2.0), np.full((3, 2), 2.0)])
        xs = [np.full((2, 3), comm.rank), np.arange(4)]
        gathered = [np.repeat([[0] * 3, [1] * 3], 2, axis=0), np.tile(np.arange(4), 2)]
        same(of(comm.all_gather, xs), gathered)
        outs = [Copying(np.zeros_like(x)) for x in gathered]
        same(of(comm.all_gather, xs, out=outs), gathered)

    run_ranks(2, body)


@pytest.mark.parametrize("timeout", ["a", 0, -1, float("inf"), float("nan")])
def test_a_wait_takes_seconds(timeout):
    comm = Communicator("local", 0, 1, region=_core.Region(1))
    work = comm.all_reduce([np.ones(3)], async_op=True)
    for wait in (work.wait, work.synchronize):
        with pytest.raises(InvalidArgumentError, match=r"must be a positive, finite .*\(rank 0 of 1\)"):
            wait(timeout)
    same(work.wait(1e30), [np.ones(3)])


def test_a_timeout_is_for_all_messages_of_a_blocking_list():
    """On links of 20 Mbit/s each takes longer than half of it."""

    def body(comm):
        xs = [np.ones(MIB // 2, np.uint8), np.ones(MIB // 2, np.int8), np.ones(MIB // 8, np.float32)]
        with pytest.raises(CollectiveTimeoutError):
            comm.all_reduce(xs, timeout=0.45, algorithm="ring")

    with gpucomm.local(2, links="switch:20Mbit", threads=True) as world:
        world.run(body)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_every_thread_that_waits_for_a_list_finds_its_results(collective, monkeypatch):
    comm = Communicator("local", 0, 1, region=_core.Region(1))
    work = getattr(comm, collective)([np.ones(3), np.ones(4)], async_op=True)
    copier = "copy_gathered" if collective == "all_gather" else "copy_pack"
    copy, unpacks, go_on, found = getattr(_core, copier), threading.Event(), threading.Event(), []

    def copy_later(arrays, *how):
        for x in arrays:
            x[...] = 0  # what is not there yet
        unpacks.set()
        assert go_on.wait(10)
        copy(arrays, *how)

    def wait():
        found.append([None if x is None else x.tolist() for x in work.wait(timeout=20)])

    monkeypatch.setattr(_core, copier, copy_later)
    threads = [threading.Thread(target=wait, daemon=True) for _ in range(3)]
    threads[0].start()
    assert unpacks.wait(10)
    for thread in threads[1:]:
        thread.start()
        thread.join(0.1)  # which it must not do
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert found == [[[1.0] * 3, [1.0] * 4]] * 3


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_results_that_could_not_be_put_in_place_come_with_the_next_wait(collective, monkeypatch):
    comm = Communicator("local", 0, 1, region=_core.Region(1))
    xs = [np.ones(3), np.ones(4)]
    outs = [np.zeros(3), np.zeros(4)]
    work = getattr(comm, collective)(xs, out=outs, async_op=True)

    def fail(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(_core, "copy_gathered" if collective == "all_gather" else "copy_pack", fail)
        for _ in range(2):
            with pytest.raises(MemoryError):
                work.wait()
    if collective == "all_reduce":
        with pytest.raises(InvalidArgumentError, match="still under way"):
            comm.all_reduce(outs[0])
    same(work.wait(), xs)
    comm.all_reduce(outs[0])


def test_after_a_fault_the_arrays_of_all_packs_are_free():
    """Another communicator takes them, while the handle lives."""
    other, issued = Communicator("local", 0, 1, region=_core.Region(1)), threading.Event()

    def body(comm):
        if comm.rank:
            return issued.wait(20) and comm.abort()
        xs = [np.ones(3), np.ones(3, np.float32), np.ones(3, np.int32)]  # a pack of each dtype
        work = comm.all_reduce([one for x in xs for one in (x, x.copy())], algorithm="direct", async_op=True)
        issued.set()
        with pytest.raises(Error):
            work.wait()
        for x in xs:
            other.all_reduce(x)
        return work.done()

    assert run_ranks(2, body)[0] is True


def test_a_root_may_broadcast_what_is_read_only():
    frozen = [np.arange(3.0), np.arange(4.0)]
    for x in frozen:
        x.flags.writeable = False

    def body(comm):
        xs = frozen if comm.rank == 1 else [np.zeros(3), np.zeros(4)]
        same(comm.broadcast(xs, root=1), frozen)

    run_ranks(2, body)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 600_000), st.sampled_from(["i1", "f4"]))), st.booleans())
def test_packs_hold_every_array_once_within_their_size(parts, writes):
    comm = _core.Communicator("local", 0, 1, region=_core.Region(1))
    xs = [np.empty(n, dtype) for n, dtype in parts]
    packs = comm._plan_packs(xs, None, 1, True, writes, None, None)
    assert sorted(i for places, *_ in packs for i in places) == list(range(len(xs)))
    for places, count, _, device in packs:
        assert places == sorted(places) and not device
        assert len({xs[i].dtype for i in places}) == 1
        assert count == sum(xs[i].size for i in places)
        if len(places) > 1:
            assert count * xs[places[0]].itemsize <= 4 * MIB
            assert all(xs[i].nbytes <= MIB for i in places)
