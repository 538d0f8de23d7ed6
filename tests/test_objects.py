"""Objects between ranks: what arrives is what was sent, to the bit; nothing is unpickled unasked."""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import itertools
import math
import pickle
import re
import struct
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from ranks import PROMPT_S, TIMEOUT_S, outcomes_of, run_ranks

import gpucomm
from gpucomm import object_collectives
from gpucomm.errors import (
    ClosedError,
    CollectiveTimeoutError,
    Error,
    InvalidArgumentError,
    MismatchError,
    UnavailableError,
    UnsupportedTypeError,
)
from gpucomm.objects import decode, encode

DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?"),
    hnp.datetime64_dtypes(),
    hnp.timedelta64_dtypes(),
    hnp.byte_string_dtypes(),
    hnp.unicode_string_dtypes(),
)
ARRAYS = DTYPES.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, min_side=0, max_side=3)))
HASHABLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters()),
    st.binary(),
)
OBJECTS = st.recursive(
    HASHABLE | ARRAYS | ARRAYS.filter(lambda x: x.size).map(lambda x: x.flat[0]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(HASHABLE | st.tuples(HASHABLE, HASHABLE), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(a, b) -> bool:
    """Equal in type and to the bit, the order of keys too."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return same([a.real, a.imag], [b.real, b.imag])
    return a == b


@settings(deadline=None)
@given(OBJECTS)
def test_what_is_decoded_is_what_was_encoded(obj):
    back = decode(encode(obj))
    assert same(back, obj)
    if isinstance(back, np.ndarray):
        assert back.flags.writeable


def test_special_values():
    obj = {
        "nan": [math.nan, -math.nan, -0.0, math.inf, np.float32("nan")],
        (1, "a"): (2**200, -(2**200), -128, 127, 128, 0, True),
        -1: {"\ud800": b"\0\xff", "": ()},
        "views": [
            np.arange(12).reshape(3, 4).T[::2],
            np.array(5, ">i2"),
            np.str_(""),
            np.bytes_(b"a\0"),
            np.zeros((0, 3)),
        ],
    }
    back = decode(encode(obj))
    assert same(back["views"][0], np.ascontiguousarray(obj["views"][0]))
    assert same(back, obj)


class Color(enum.IntEnum):
    RED = 1


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "obj",
    [
        {1},
        object(),
        Color.RED,
        Point(1, 2),
        bytearray(b"x"),
        np.zeros(2, "i4,f4"),
        np.array([None]),
        [{"a": len}],
    ],
    ids=lambda x: type(x).__name__,
)
def test_anything_else_needs_pickle(obj):
    with pytest.raises(UnsupportedTypeError, match=r"cannot be sent without pickle: pass pickle=True"):
        encode(obj)
    data = encode([1, obj], pickle=True)
    with pytest.raises(UnsupportedTypeError, match="pickled object, which this one does not unpickle"):
        decode(data)
    if type(obj) is not object:
        assert repr(decode(data, pickle=True)) == repr([1, obj])


@pytest.mark.parametrize("x", [np.zeros(2, "i4,f4"), np.array([None]), np.zeros(1, "i4,f4")[0]])
def test_what_needs_pickle_for_its_dtype_names_it(x):
    with pytest.raises(UnsupportedTypeError, match=re.escape(f"of dtype {x.dtype} cannot be sent without")):
        encode(x)


def test_cycles_and_depth_are_a_sentence():
    cycle: list = []
    cycle.append(cycle)
    for obj in (cycle, eval("[" * 101 + "]" * 101)):
        with pytest.raises(UnsupportedTypeError, match=r"nested more than 100 deep cannot be .* pickle=True"):
            encode([obj])
        assert repr(decode(encode([obj], pickle=True), pickle=True)) == repr([obj])
        with pytest.raises(UnsupportedTypeError, match=r"pickled object, which this one does not unpickle"):
            decode(encode([obj], pickle=True))
    with pytest.raises(UnsupportedTypeError, match=r"a builtins.list cannot be pickled: RecursionError"):
        encode(functools.reduce(lambda inner, _: [inner], range(100_000), []), pickle=True)
    wide: list = []
    wide += [wide, wide]
    assert decode(encode(wide, pickle=True), pickle=True)[0][1][0][0] is not None, "and soon"
    deepest = 100
    for inner in ("", "1", "(),", "{}", "{1: [2]}"):
        most = deepest - sum(inner.count(c) for c in "({[")
        deep = eval("[" * most + inner + "]" * most)
        assert decode(encode(deep)) == deep
        with pytest.raises(UnsupportedTypeError, match="nested more than 100 deep"):
            encode([deep])
        data = encode(deep)
        with pytest.raises(InvalidArgumentError, match="nested too deep"):
            decode(b"l" + struct.pack("<Q", 1) + data)


SAMPLE = encode({"a": [1, (2.5, 3j)], 4: np.arange(5), "text": ["é", b"b", None, np.float32(1)]})


def test_a_cut_stream_raises():
    for end in range(len(SAMPLE)):
        with pytest.raises(InvalidArgumentError, match="are damaged"):
            decode(SAMPLE[:end])
    with pytest.raises(InvalidArgumentError, match="are damaged: 1 bytes too many"):
        decode(SAMPLE + b"N")


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_stream_raises_or_gives_an_object(changes):
    """Never another exception, never more memory than the bytes account for."""
    data = bytearray(SAMPLE)
    for at, byte in changes:
        data[at] = byte
    with contextlib.suppress(InvalidArgumentError, UnsupportedTypeError):
        decode(bytes(data))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_raise_or_give_an_object(data):
    with contextlib.suppress(InvalidArgumentError, UnsupportedTypeError):
        decode(data)


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("bytes of another rank were executed",)


def test_bytes_of_others_run_nothing_here():
    with pytest.raises(UnsupportedTypeError):
        decode(b"P" + struct.pack("<Q", len(pickle.dumps(Bomb()))) + pickle.dumps(Bomb()))


@pytest.mark.parametrize("world", [1, 2, 5])
def test_every_rank_gets_the_objects(world):
    def body(comm):
        root = world - 1
        mine = {"rank": comm.rank, "x": np.arange(comm.rank * 20_000), "t": (1, [None])}
        got = comm.broadcast_object(mine if comm.rank == root else None, root)
        assert got["rank"] == root and len(got["x"]) == root * 20_000 and got["t"] == (1, [None])
        everybody = comm.gather_objects(mine)
        assert [o["rank"] for o in everybody] == list(range(world))
        assert [len(o["x"]) for o in everybody] == [r * 20_000 for r in range(world)]
        on_root = comm.gather_objects(str(comm.rank), root=0, timeout=10)
        assert on_root == ([str(r) for r in range(world)] if comm.rank == 0 else None)

    run_ranks(world, body)


@pytest.mark.parametrize("timeout", [3, None])
@pytest.mark.parametrize(
    ("call", "root"), [("broadcast_object", 0), ("gather_objects", None), ("gather_objects", 0)]
)
def test_the_timeout_is_for_the_lengths_and_the_bytes_together(call, root, timeout):
    allowed = []

    def body(comm):
        def noted(send):
            def slow(*args, **how):
                allowed.append(how["timeout"])
                time.sleep(0.1)
                return send(*args, **how)

            return slow

        if comm.rank == 0:
            for name in ("all_gather", "broadcast", "gather"):
                setattr(comm, name, noted(getattr(comm, name)))
        getattr(comm, call)(comm.rank, root, timeout=timeout)

    run_ranks(2, body)
    lengths, rest = allowed
    assert lengths == timeout and 0 < rest <= (timeout or TIMEOUT_S) - 0.1


def test_what_can_not_be_sent_is_refused_on_every_rank():
    def body(comm):
        bad = {1} if comm.rank == 1 else 1
        for call in (
            lambda: comm.broadcast_object(bad, root=1),
            lambda: comm.gather_objects(bad),
            lambda: comm.gather_objects(bad, root=0),
        ):
            with pytest.raises(UnsupportedTypeError) as caught:
                call()
            assert ("rank 1 has no object to send" in str(caught.value)) == (comm.rank != 1)
            assert str(caught.value).endswith(f"(rank {comm.rank} of 3)")
        assert comm.gather_objects(bad, pickle=True) == [1, {1}, 1]
        assert comm.broadcast_object(bad, root=1, pickle=True) == {1}

    run_ranks(3, body)


@pytest.mark.parametrize("call", ["broadcast_object", "gather_objects"])
def test_no_memory_for_an_object_is_a_sentence_on_every_rank(call):
    def body(comm):
        vast = np.broadcast_to(np.zeros(1), (1 << 44,))
        said = r"there is no memory for the bytes of the object \(rank"
        with pytest.raises(UnsupportedTypeError if comm.rank else UnavailableError, match=said):
            getattr(comm, call)(vast if comm.rank == 0 else 1)
        return comm.broadcast_object(comm.rank)

    assert run_ranks(2, body) == [0] * 2


@pytest.mark.parametrize("where", ["decode", "np.empty"])
def test_no_memory_for_what_comes_is_a_sentence(monkeypatch, where):
    def fail(*_):
        raise MemoryError

    def body(comm):
        comm.broadcast_object(1)
        if where == "np.empty":
            comm.barrier()  # a broadcast waits for nobody

    without = SimpleNamespace(**vars(np) | {"empty": fail})
    monkeypatch.setattr(object_collectives, where.split(".")[0], without if "." in where else fail)
    first, second = outcomes_of(2, body)
    assert isinstance(second, UnavailableError) and str(second).startswith("there is no memory for "), second
    assert str(second).endswith("(rank 1 of 2)")
    if where == "decode":
        assert first is None
    else:
        assert isinstance(first, MismatchError) and str(second) in str(first), first


@pytest.mark.parametrize("async_op", [False, True])
def test_roots_that_differ_are_told_on_every_rank(async_op):
    def body(comm):
        def call(root):
            work = comm.broadcast_object(comm.rank, root, async_op=async_op)
            return work.wait() if async_op else work

        said = "broadcast_object of root 0 on rank 0, of root 1 on rank 1"
        with pytest.raises(MismatchError, match=rf"{said} \(rank {comm.rank} of 3\)"):
            call(comm.rank)
        for root in (-1, 3):
            with pytest.raises(InvalidArgumentError, match=rf"root must be in \[0, 3\), got {root}"):
                call(root)
        assert call(2) == 2

    run_ranks(3, body)


@pytest.mark.parametrize("root", ["a", None, 1.0, True, 2**70])
def test_a_root_that_is_no_number_of_a_rank_is_told_to_the_others(root):
    def body(comm):
        if comm.rank == 1:
            with pytest.raises(InvalidArgumentError, match=r"root must be a whole number in \[0, 2\), got"):
                comm.broadcast_object(1, root)
        else:
            with pytest.raises(MismatchError, match="rank 1's broadcast_object #1 was refused: root must be"):
                comm.broadcast_object(1, 0)

    run_ranks(2, body)


def test_errors_name_the_call_that_a_message_is_part_of():
    calls = {
        "split/subset": lambda comm: comm.split(0),
        "broadcast_object": lambda comm: comm.broadcast_object(1),
        "gather_objects": lambda comm: comm.gather_objects(1),
        "max_rel_err": lambda comm: comm.all_reduce(np.ones(9, np.float32), max_rel_err=0.1),
    }
    names = list(calls)

    def body(comm, pair):
        with pytest.raises(MismatchError) as caught:
            calls[pair[comm.rank]](comm)
        return str(caught.value)

    for pair in itertools.pairwise([*names, names[0]]):
        for said in run_ranks(2, functools.partial(body, pair=pair)):
            assert all(f"{name}'s all_" in said for name in pair)


class Lost:
    """Can be pickled, and not unpickled."""

    def __reduce__(self):
        return int, ("no number",)


class Unwilling:
    """Says why in words that are no UTF-8."""

    def __reduce__(self):
        raise RuntimeError("\ud800")


@pytest.mark.parametrize("kind", [threading.Lock, Unwilling])
def test_what_can_not_be_pickled_is_refused_on_every_rank(kind):
    def body(comm):
        bad = kind() if comm.rank == 1 else 1
        for call in (
            lambda: comm.broadcast_object(bad, root=1, pickle=True),
            lambda: comm.gather_objects(bad, pickle=True),
            lambda: comm.gather_objects(bad, root=0, pickle=True),
            lambda: comm.gather_objects(bad, pickle=True, async_op=True).wait(),
        ):
            with pytest.raises(UnsupportedTypeError) as caught:
                call()
            assert re.search(r"(lock|Unwilling) cannot be pickled", str(caught.value)) or comm.rank == 2
            assert ("rank 1 has no object to send" in str(caught.value)) == (comm.rank != 1)
        assert comm.gather_objects(comm.rank) == [0, 1, 2]

    run_ranks(3, body)


def test_what_can_not_be_unpickled_says_so():
    def body(comm):
        sent = comm.broadcast_object(Lost() if comm.rank == 0 else None, pickle=True)
        assert isinstance(sent, Lost)

    first, second = outcomes_of(2, body)
    assert first is None
    sentence = (
        r"object of rank 0: what was pickled cannot be unpickled here: ValueError.*no number.*rank 1 of 2"
    )
    with pytest.raises(UnsupportedTypeError, match=sentence):
        raise second


def test_a_rank_that_does_not_trust_the_others_says_so():
    def body(comm):
        return comm.broadcast_object({1}, pickle=comm.rank == 0)

    first, second = outcomes_of(2, body)
    assert first == {1}
    with pytest.raises(UnsupportedTypeError, match=r"object of rank 0: .* pickle=True on all ranks .rank 1"):
        raise second


@pytest.mark.processes
def test_over_processes():
    def body(comm):
        return comm.gather_objects({"pid": comm.rank, 2: (comm.rank,)})

    with gpucomm.local(2) as world:
        assert world.run(body) == [[{"pid": 0, 2: (0,)}, {"pid": 1, 2: (1,)}]] * 2


@pytest.mark.parametrize("world", [1, 3])
def test_asynchronous_calls_run_in_their_order_beside_others(world):
    def body(comm):
        settings, root = [comm.rank, "kept"], world - 1
        first = comm.broadcast_object(settings, root, async_op=True)
        settings.append("later")  # what was given counts
        works = [comm.gather_objects((i, comm.rank), async_op=True) for i in range(4)]
        assert comm.all_reduce(np.ones(3)).tolist() == [world] * 3
        on_root = comm.gather_objects({"x": np.arange(comm.rank)}, root=0, async_op=True)
        assert [work.wait() for work in works] == [[(i, r) for r in range(world)] for i in range(4)]
        assert first.wait(10) is settings if comm.rank == root else first.wait(10) == [root, "kept"]
        assert first.done() and first.result == first.synchronize()
        got = on_root.wait()
        assert [len(o["x"]) for o in got] == list(range(world)) if comm.rank == 0 else got is None

    run_ranks(world, body)


def test_an_asynchronous_object_that_can_not_be_sent_is_refused_on_every_rank():
    def body(comm):
        work = comm.gather_objects({1} if comm.rank == 1 else 1, async_op=True)
        with pytest.raises(UnsupportedTypeError, match="cannot be sent without pickle"):
            work.wait()
        return comm.gather_objects(comm.rank, async_op=True).wait()

    assert run_ranks(2, body) == [[0, 1]] * 2


def nobody_joins(end, then):
    """Rank 0 ends a call that nobody joins, by `end`; both ranks meet the error, and go on by `then`."""
    ended = threading.Event()

    def body(comm):
        comm.gather_objects(0, async_op=True).wait()
        if comm.rank == 0:
            end(comm, comm.gather_objects(1, async_op=True))
            ended.set()
        assert ended.wait(10)
        with pytest.raises(Error, match="rank 0"):
            comm.gather_objects(2, async_op=True).wait()
        return then(comm)

    return run_ranks(2, body)


def test_a_timeout_ends_asynchronous_calls_and_no_others():
    def end(comm, work):
        assert not work.done()
        with pytest.raises(InvalidArgumentError, match="not done yet"):
            work.result
        for timeout in (0, -1, float("nan"), float("inf"), "a", True):
            with pytest.raises(InvalidArgumentError, match=r"must be a positive, finite .*rank 0 of 2"):
                work.wait(timeout)
        with pytest.raises(CollectiveTimeoutError, match=r"has not ended within 0\.2 s.*rank 0 of 2"):
            work.wait(0.2)

    assert nobody_joins(end, lambda comm: comm.all_reduce(np.ones(1)).item()) == [2.0] * 2


def test_closing_ends_asynchronous_calls():
    def end(comm, work):
        begin = time.monotonic()
        comm.close()
        assert time.monotonic() - begin < PROMPT_S
        with pytest.raises(Error):
            work.wait()

    def then(comm):
        comm.close()
        with pytest.raises(ClosedError):
            comm.gather_objects(3, async_op=True)

    before = set(threading.enumerate())
    nobody_joins(end, then)
    assert not [t for t in set(threading.enumerate()) - before if t.name.startswith("gpucomm-waiter")]


def test_the_first_asynchronous_call_waits_no_longer_than_it_says():
    ended = threading.Event()

    def body(comm):
        if comm.rank == 1:
            assert ended.wait(10)
            return
        try:
            with pytest.raises(CollectiveTimeoutError, match=r"timed out after 0\.2 s on rank 0 of 2"):
                comm.gather_objects(0, timeout=0.2, async_op=True)
        finally:
            ended.set()

    run_ranks(2, body)


@pytest.mark.parametrize("without", [[1], [0, 1]])
def test_a_rank_without_a_thread_for_asynchronous_calls_says_so_to_all(threadless, without):
    ended = threading.Event()

    def body(comm):
        if comm.rank in without:
            threadless.add(threading.get_ident())
            with pytest.raises(
                UnavailableError, match=r"can't start new thread \(ulimit -u\) \(rank . of 2\)"
            ):
                comm.gather_objects(0, async_op=True)
            threadless.discard(threading.get_ident())
            assert len(without) == 2 or ended.wait(10)
            return len(without) == 1 or comm.gather_objects(1, async_op=True).wait() == [1, 1]
        with pytest.raises(MismatchError, match=r"rank 1's split #1 was refused: no thread to end calls on"):
            comm.gather_objects(0, async_op=True)
        ended.set()
        return True

    assert run_ranks(2, body, timeout=5) == [True, True]


def test_what_comes_after_is_no_part_of_a_collective_of_objects():
    def body(comm):
        comm.broadcast_object(1)
        with pytest.raises(MismatchError, match="do not make the same call") as raised:
            comm.all_reduce(np.ones(2 + comm.rank), algorithm="ring")
        return "broadcast_object" in str(raised.value)

    assert run_ranks(2, body) == [False] * 2
