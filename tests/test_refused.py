"""A call that one rank alone refuses: the others, which wait in it, are told."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from ranks import PROMPT_S, outcomes_of, run_ranks

from gpucomm import _core
from gpucomm.errors import ClosedError, InvalidArgumentError, MismatchError, UnsupportedTypeError

X = np.ones(6, np.float32)


class Mute:
    def __repr__(self) -> str:
        raise ValueError("no")


class Odd:
    def __repr__(self) -> str:
        return "x\ud800\ny"


# (what rank 1 calls, what the others call, what the error of rank 1 says)
ALONE = [
    (lambda c: c.all_reduce(X, algorithm="rign"), lambda c: c.all_reduce(X.copy()), "all_reduce", "rign"),
    (lambda c: c.all_reduce(X, op="xor"), lambda c: c.all_reduce(X.copy()), "all_reduce", "xor"),
    (lambda c: c.all_reduce([1.0]), lambda c: c.all_reduce([X.copy()]), "all_reduce", "got float"),
    (
        lambda c: c.all_reduce(X, max_rel_err=0),
        lambda c: c.all_reduce(X.copy(), max_rel_err=1),
        "all_reduce",
        "above",
    ),
    (lambda c: c.reduce(X.copy(), 3), lambda c: c.reduce(X.copy(), 0), "reduce", "root must be in"),
    (lambda c: c.broadcast(X.copy(), -1), lambda c: c.broadcast(X.copy(), 0), "broadcast", "got -1"),
    (lambda c: c.broadcast(X.copy(), "a"), lambda c: c.broadcast(X.copy(), 0), "broadcast", "got 'a'"),
    (lambda c: c.reduce(X, op=3), lambda c: c.reduce(X.copy()), "reduce", "does not take"),
    (lambda c: c.all_gather(X, counts=[6, -1, 6]), lambda c: c.all_gather(X), "all_gather", "negative"),
    (lambda c: c.gather(X, 7), lambda c: c.gather(X, 0), "gather", "root must be in"),
    (lambda c: c.scatter(None), lambda c: c.scatter(X, out=np.ones(2, "f4")), "scatter", "out is needed"),
    (lambda c: c.all_to_all(X[:5]), lambda c: c.all_to_all(X), "all_to_all", "multiple of the world"),
    (lambda c: c.reduce_scatter(X, codec="int9"), lambda c: c.reduce_scatter(X), "reduce_scatter", "int9"),
    (lambda c: c.barrier(timeout=-1), lambda c: c.barrier(), "barrier", "timeout must be"),
    (lambda c: c.gather(X, Mute()), lambda c: c.gather(X), "gather", "got a Mute without a repr"),
    (lambda c: c.barrier(timeout=Odd()), lambda c: c.barrier(), "barrier", "ud800"),
    (
        lambda c: c.broadcast_object(1, root=Mute()),
        lambda c: c.broadcast_object(1),
        "broadcast_object",
        "a Mute without",
    ),
    *(
        (
            lambda c, call=call: getattr(c, call)(tmeout=3),
            lambda c, call=call, good=good: getattr(c, call)(*good),
            call,
            "unexpected keyword argument 'tmeout'",
        )
        for call, good in [
            ("split", [0]),
            ("subset", [[0]]),
            ("split_nodes", []),
            ("broadcast_object", [1]),
            ("gather_objects", [1]),
        ]
    ),
    (lambda c: c.split(Odd()), lambda c: c.split(0), "split", "ud800"),
    (lambda c: c.split(-2), lambda c: c.split(0), "split", "color must be"),
    (lambda c: c.subset([0, 0]), lambda c: c.subset([0]), "subset", "distinct"),
    (
        lambda c: c.all_reduce(X, op="max", codec="int8"),
        lambda c: c.all_reduce(X.copy(), async_op=True).wait(),
        "all_reduce",
        "max",
    ),
]


@pytest.mark.parametrize(("bad", "good", "call", "said"), ALONE)
def test_the_others_raise_within_a_second_and_name_both_calls(bad, good, call, said):
    def body(comm):
        comm.set_links(_core.Links())
        if comm.rank != 1:
            began = time.monotonic()
            with pytest.raises(MismatchError) as caught:
                good(comm)
                comm.barrier()  # a broadcast waits for nobody
            return str(caught.value), time.monotonic() - began
        with pytest.raises((ValueError, TypeError), match=said):
            bad(comm)
        done.wait(10)
        with pytest.raises((MismatchError, ClosedError), match="was refused"):
            comm.barrier()
        return None

    def all_of(comm):
        try:
            return body(comm)
        finally:
            done.set()

    done = threading.Event()
    for rank, outcome in enumerate(outcomes_of(3, all_of)):
        if rank == 1:
            assert outcome is None
            continue
        text, seconds = outcome
        assert "do not make the same call" in text and " calls " in text, text
        assert f"rank 1's {call} #1 was refused: " in text and said in text, text
        assert seconds < PROMPT_S, text


def test_a_rank_that_corrects_its_call_at_once_is_not_out_of_step():
    def body(comm):
        x = X.copy()
        for _ in range(3):
            if comm.rank == 1:
                with pytest.raises(InvalidArgumentError):
                    comm.all_reduce(x, algorithm="rign")
                time.sleep(0.1)
            comm.all_reduce(x, algorithm="ring", segments=1)
        return x[0]

    assert run_ranks(2, body) == [8.0] * 2


def test_a_call_that_all_refuse_leaves_nothing_behind():
    def body(comm):
        with pytest.raises(InvalidArgumentError):
            comm.all_reduce(X, algorithm="rign")
        for nested in ([X], (X, X)):
            with pytest.raises(InvalidArgumentError):
                comm.all_reduce(nested if comm.rank else X, algorithm="rign")
        if comm.rank == 1:
            time.sleep(1)  # the others wait for it longer than for one that alone has refused
        return comm.all_reduce(X.copy(), algorithm="ring")[0]

    assert run_ranks(3, body) == [3.0] * 3


@pytest.mark.timing
def test_who_refuses_and_leaves_is_not_waited_for():
    def body(comm):
        if comm.rank == 1:
            comm.all_reduce(X, algorithm="rign")
        comm.all_reduce(X.copy(), algorithm="ring")

    def seconds():
        began = time.monotonic()
        first, second = outcomes_of(2, body)
        assert isinstance(first, MismatchError) and "rank 1's all_reduce #1 was refused: " in str(first)
        assert isinstance(second, InvalidArgumentError)
        return time.monotonic() - began

    assert min(seconds() for _ in range(5)) < 0.4  # whoever is waited for costs half a second


BIG = np.zeros(1 << 20)  # no send of it ends before it is received

# (what rank 1 calls, what rank 0 calls, what the error of rank 1 says, what rank 0's)
ENDS = [
    (lambda c: c.send(X[::2], 0), lambda c: c.recv(np.ones(3, "f4"), 1), "contiguous", "send #1 to rank 0"),
    (lambda c: c.send(X, 0, timeout=0), lambda c: c.recv(X.copy(), 1), "positive", "send #1 to rank 0"),
    (lambda c: c.send(X, 0, timeout="a"), lambda c: c.recv(X.copy(), 1), "got 'a'", "send #1 to rank 0"),
    (
        lambda c: c.send(X, 0, tmeout=3),
        lambda c: c.recv(X.copy(), 1),
        r"^send does not take .numpy.ndarray, 0, tmeout=3.; it is send.*rank 1 of 3.$",
        "send #1 to rank 0",
    ),
    (
        lambda c: c.recv(X.copy(), source=0, stream="a"),
        lambda c: c.send(BIG, 1),
        "does not take",
        "recv #1 from rank 0",
    ),
    (
        lambda c: c.sendrecv(X, 0, X.copy(), 2, **{"\ud800": 1}),
        lambda c: c.recv(X.copy(), 1),
        r"does not take .*\\ud800=1",
        "send #1 to rank 0",
    ),
    (lambda c: c.send(X, 0, timeout=Mute()), lambda c: c.recv(X.copy(), 1), "a Mute w", "send #1 to rank 0"),
    (lambda c: c.recv(b"12345678", 0), lambda c: c.send(BIG, 1), "got bytes", "recv #1 from rank 0"),
    (lambda c: c.sendrecv(X, 0, X, 2), lambda c: c.recv(X.copy(), 1), "overlap|apart", "send #1 to rank 0"),
]


@pytest.mark.parametrize(("bad", "good", "said", "end"), ENDS)
def test_the_other_end_of_a_message_raises_within_a_second(bad, good, said, end):
    done = threading.Event()

    def body(comm):
        if comm.rank == 0:
            began = time.monotonic()
            with pytest.raises(
                MismatchError, match=rf"rank 0 of 3 calls .*, rank 1's {end} was refused: "
            ) as caught:
                good(comm)
            done.set()
            return str(caught.value), time.monotonic() - began
        if comm.rank == 1:
            with pytest.raises((ValueError, TypeError), match=said):
                bad(comm)
        assert done.wait(10)
        return None

    text, seconds = run_ranks(3, body)[0]
    assert seconds < PROMPT_S, text


def test_a_message_that_is_corrected_at_once_or_refused_by_both_arrives():
    def body(comm):
        out = np.zeros(6, np.float32)
        if comm.rank == 1:
            with pytest.raises(UnsupportedTypeError):
                comm.send(X[::2], 0)
            time.sleep(0.1)
        comm.send(X, 0) if comm.rank else comm.recv(out, 1)
        with pytest.raises(UnsupportedTypeError):
            comm.send(X[::2], 0) if comm.rank else comm.recv(out[::2], 1)
        time.sleep(0.8 * comm.rank)  # the other one waits for longer than for one that alone has refused
        comm.send(X + 1, 0) if comm.rank else comm.recv(out, 1)
        return out[0]

    assert run_ranks(2, body) == [2.0, 0.0]


def test_who_comes_long_after_a_refusal_gives_it_time_to_be_made_good():
    def body(comm):
        out = np.zeros(6, np.float32)
        with pytest.raises(InvalidArgumentError, match="overlap"):
            comm.sendrecv(X, 1 - comm.rank, X, 1 - comm.rank)
        if comm.rank == 1:
            with pytest.raises(InvalidArgumentError):
                comm.all_reduce(X, algorithm="rign")
        time.sleep(0.7 + 0.1 * comm.rank)  # longer ago than a refusal is good for
        comm.send(X, 0) if comm.rank else comm.recv(out, 1)
        time.sleep(0.1 * comm.rank)
        return out[0] + comm.all_reduce(X.copy(), algorithm="ring")[0]

    assert run_ranks(2, body) == [3.0, 2.0]


@pytest.mark.parametrize("codec", ["int8", "fixed:0.01"])
def test_what_a_codec_does_not_take_is_refused_before_the_links_are_measured(codec):
    def body(comm):
        if comm.rank == 1:
            with pytest.raises(UnsupportedTypeError, match="does not take int64"):
                comm.all_reduce(np.ones(6, int), codec=codec)
        return comm.all_reduce(X.copy())[0]

    assert run_ranks(2, body) == [2.0] * 2


def test_a_message_to_another_rank_may_be_refused_for_as_long_as_it_likes():
    def body(comm):
        if comm.rank == 1:
            with pytest.raises(UnsupportedTypeError):
                comm.send(X[::2], 2)
            time.sleep(0.8)
            comm.send(X, 0)
        return comm.recv(np.zeros(6, "f4"), 1)[0] if comm.rank == 0 else 1

    assert run_ranks(3, body) == [1] * 3


class Calling:
    """An array whose library makes a call of another communicator, which refuses it."""

    dtype, shape = np.dtype(np.float32), (6,)

    def __init__(self, other):
        self.other = other

    def __dlpack_device__(self):
        return X.__dlpack_device__()

    def __dlpack__(self, **how):
        with pytest.raises(InvalidArgumentError):
            self.other.all_reduce(X, "nonsense")
        return X.copy().__dlpack__(**how)


def test_a_call_that_is_refused_within_a_call_of_another_communicator_is_told():
    def body(comm):
        with comm.subset([0, 1]) as other:
            if comm.rank == 0:
                comm.all_gather([Calling(other), X])
                return ""
            began = time.monotonic()
            with pytest.raises(MismatchError) as caught:
                other.all_reduce(X.copy())
            assert time.monotonic() - began < PROMPT_S
            comm.all_gather([X, X])
            return str(caught.value)

    assert "was refused" in run_ranks(2, body, timeout=10)[1]


def test_a_call_that_all_have_made_ends_though_one_fails_in_the_next() -> None:
    def body(comm):
        comm.barrier()
        with pytest.raises(MismatchError):
            comm.all_reduce(np.ones(10 + comm.rank), algorithm="ring", segments=1)

    for _ in range(
        150
    ):  # 6 in 100 failed on busy processors, where a rank saw the fault before its barrier's end
        run_ranks(4, body)
