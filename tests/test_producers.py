"""Arrays as libraries lend them by DLPack: asked once, held until calls end, written only if allowed."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref

import numpy as np
import pytest
from producers import COPIED, READ_ONLY, Producer
from ranks import PROMPT_S, outcomes_of, run_ranks

from gpucomm import _core
from gpucomm.errors import MismatchError, UnsupportedTypeError

ASYNC = {
    "all_reduce": lambda c, x, out: c.all_reduce(x, out=out, algorithm="ring", async_op=True),
    "reduce": lambda c, x, out: c.reduce(x, 0, out=out, algorithm="direct", async_op=True),
    "broadcast": lambda c, x, out: c.broadcast(x, 1, out=out, algorithm="direct", async_op=True),
    "all_to_all": lambda c, x, out: c.all_to_all(x, out=out, async_op=True),
    "premul_sum": lambda c, x, out: c.reduce_scatter(
        x, "premul_sum", scale=2.0, out=np.zeros(2, np.float32), async_op=True
    ),
    "all_to_all with counts": lambda c, x, out: c.all_to_all(
        x, out=out, counts=[2, 2], out_counts=[2, 2], async_op=True
    ),
    "sendrecv": lambda c, x, out: c.sendrecv(x, 1 - c.rank, out, 1 - c.rank, async_op=True),
}


@pytest.mark.parametrize("name", ASYNC)
def test_memory_is_asked_for_once_and_held_until_an_asynchronous_call_has_ended(name):
    def body(comm):
        comm.set_links(_core.Links())  # else they are measured first, by all ranks
        x, out = Producer(), Producer(np.zeros(4))
        if comm.rank:
            assert started.wait(20)
        work = ASYNC[name](comm, x, out)
        if not comm.rank:  # the other one has not come
            held = x.lent - x.returned, out.lent - out.returned
            started.set()
        work.wait()
        assert (x.lent, x.returned) == (1, 1) and out.lent == out.returned <= 1
        return held if not comm.rank else None

    started = threading.Event()
    unused = {"broadcast": (0, 1), "premul_sum": (1, 0)}  # one of them each
    assert run_ranks(2, body)[0] == unused.get(name, (1, 1))


def test_a_message_of_which_only_one_end_is_there_holds_its_memory():
    def body(comm):
        x = Producer(np.ones(1_000_000))  # more than the channel takes
        work = (comm.recv if comm.rank else comm.send)(x, 1 - comm.rank, async_op=True)
        assert x.lent == 1
        work.wait()
        return x.lent, x.returned

    assert run_ranks(2, body) == [(1, 1)] * 2


def test_arrays_are_let_go_by_wait():
    class Array(np.ndarray):
        pass

    def body(comm):
        x = np.ones(8).view(Array)
        alive = weakref.ref(x)
        work = comm.all_reduce(x, out=np.zeros(8), async_op=True)
        work.wait()
        del x
        sent = np.ones(3).view(Array)
        message = weakref.ref(sent)
        if comm.rank:
            comm.recv(np.zeros(3), 0)
        else:
            comm.send(sent, 1, async_op=True).wait()
        del sent
        return alive(), message()

    assert run_ranks(2, body) == [(None, None)] * 2


def test_what_is_let_go_may_make_calls():
    """As it goes, among others that are kept."""

    class Calling(np.ndarray):
        comm = None

        def __del__(self):
            if self.comm is not None and self.base is not None:
                ended.append(self.comm.barrier(async_op=True))

    def body(comm):
        works = []
        for _ in range(4):
            x = np.ones(8).view(Calling)
            x.comm = comm
            works.append(comm.all_reduce(x, out=np.zeros(8), async_op=True))
        del x
        for work in works:
            work.wait()
        del works, work
        comm.barrier()
        while ended:
            ended.pop().wait()
        return True

    ended = []
    assert run_ranks(1, body) == [True]


SAID = {
    "read-only": ({"flags": READ_ONLY}, "x is read-only: pass out="),
    "a copy": ({"flags": COPIED}, "x is lent as a copy of what its library holds, which .*: pass"),
    "old DLPack": (
        {"version": None},
        r"x is lent by DLPack before 1.0, which cannot say .* NumPy's and PyTorch's arrays do: pass out=",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_only_what_may_be_written_is(name):
    how, said = SAID[name]

    def body(comm):
        x, out = Producer(**how), Producer(np.zeros(4))
        with pytest.raises(UnsupportedTypeError, match=said):
            comm.all_reduce(x)
        with pytest.raises(UnsupportedTypeError, match=said.partition(":")[0].replace("x is", "out is")):
            comm.all_reduce(np.ones(4, np.float32), out=x)
        with pytest.raises(UnsupportedTypeError, match="recv writes it"):
            comm.recv(x, 1 - comm.rank)
        with pytest.raises(UnsupportedTypeError, match=r"x\[1\] is"):
            comm.all_reduce([np.ones(4, np.float32), x])
        comm.all_reduce(x, out=out)  # it is read
        return x.memory.tolist(), out.memory.tolist(), x.lent - x.returned

    assert run_ranks(2, body) == [([1.0] * 4, [2.0] * 4, 0)] * 2


class Mutable(Producer):
    """As an array of a library whose arrays may be written, of a time before DLPack 1.0."""


Mutable.__module__ = "cupy.of_old"
Derived = type("Derived", (Mutable,), {"__module__": "mine"})
Jax = type("Jax", (Producer,), {"__module__": "jaxlib.of_old"})
NotJax = type("NotJax", (Producer,), {"__module__": "jaxtyping"})


def test_of_some_libraries_it_is_known_whether_arrays_may_be_written():
    def body(comm):
        for kind in (Mutable, Derived):
            assert comm.all_reduce(kind(version=None)).memory.tolist() == [2.0] * 4
        assert comm.all_reduce(NotJax()).memory.tolist() == [2.0] * 4
        with pytest.raises(UnsupportedTypeError, match="x is read-only"):
            comm.all_reduce(Jax())

    run_ranks(2, body)


class ExchangeTable(ctypes.Structure):
    """DLPack's, in which a producer may leave functions out."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)] + [
        (name, ctypes.c_void_p) for name in ("before", "allocate", "managed", "object", "tensor", "stream")
    ]


TABLE = ExchangeTable(major=1, minor=3)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = (
    ctypes.py_object,
    [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
)
CAPSULE = new_capsule(ctypes.addressof(TABLE), b"dlpack_exchange_api", None)


def test_an_exchange_table_that_gives_no_tensors_is_left_aside():
    """Its address is that of no function: to call it would end the process."""
    kind = type("Tabled", (Producer,), {"__dlpack_c_exchange_api__": CAPSULE})

    def body(comm):
        return comm.all_reduce(kind()).memory.tolist()

    assert run_ranks(2, body) == [[2.0] * 4] * 2


class Namespaced(Producer):
    """Of a library whose new arrays do not say that they may be written."""

    shape, dtype = (4,), np.dtype(np.float32)

    def __getitem__(self, part):
        return Namespaced(self.memory[part], **self.how)

    def __array_namespace__(self):
        class Namespace:
            empty = staticmethod(lambda shape, dtype: Namespaced(np.zeros(shape), version=None))

        return Namespace


def test_a_new_array_that_cannot_be_written_is_refused_as_such():
    def body(comm):
        said = "a new array like x is lent by DLPack before 1.0, .*: pass out= for the result"
        with pytest.raises(UnsupportedTypeError, match=said):
            comm.all_gather(Namespaced())
        with pytest.raises(UnsupportedTypeError, match="a new array like x is lent by DLPack"):
            comm.all_gather([Namespaced(), Namespaced()])
        with pytest.raises(UnsupportedTypeError, match=r"a pack, a new array like x\[0\], is lent by DLPack"):
            comm.all_reduce([Namespaced(), Namespaced()])
        return comm.stats()["calls"]

    assert run_ranks(2, body) == [0, 0]


FAULTY = {
    "a negative extent": ({"shape": (4, -1)}, "the negative extent -1 in dimension 1"),
    "two negative extents": ({"shape": (-2, -2)}, "the negative extent -2 in dimension 0"),
    "too many elements": ({"shape": (1 << 33, 1 << 33)}, "more bytes than any memory holds"),
    "none that can be counted": ({"shape": (0, 1 << 33, 1 << 33)}, "more bytes than any memory holds"),
    "too many bytes": ({"shape": (1 << 61,)}, "more bytes than any memory holds"),
    "no extents": ({"shape": None, "ndim": 1}, "has 1 dimensions, and no extents"),
    "negative dimensions": ({"ndim": -1}, "has -1 dimensions"),
    "parts of a byte": ({"dtype": (17, 4, 1), "flags": 4}, r"DLPack code 17, 4 bits, 1 lanes"),
    "vectors": ({"dtype": (2, 32, 4)}, "32 bits, 4 lanes"),
    "another DLPack": ({"version": (2, 0)}, "speaks DLPack 2, gpucomm speaks 1"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_what_no_library_should_lend_is_a_sentence_and_given_back(name):
    how, said = FAULTY[name]

    def body(comm):
        x = Producer(**how)
        for call in (comm.all_reduce, comm.all_gather, lambda x: comm.all_reduce([x, x])):
            with pytest.raises(UnsupportedTypeError, match=rf"{said}.* \(rank 0 of 1\)"):
                call(x)
        return x.lent - x.returned

    assert run_ranks(1, body) == [0]


class Raising:
    """Whose library has raised an error."""

    def __init__(self, error, **attributes):
        self.error = error
        vars(self).update(attributes)

    def __dlpack__(self, **_):
        raise self.error


class Negated(Producer):
    def is_neg(self):
        raise RuntimeError("is_neg of its own")


class Streaming(Producer):
    __cuda_array_interface__ = property(lambda self: {"stream": "x"})


def unreadable(dtype):
    return np.zeros(2, dtype)


UNREADABLE = {
    "any error": (lambda: Raising(RuntimeError("of\nits own")), r"x \(Raising\) cannot be read: of \(rank"),
    "no UTF-8": (lambda: Raising(RuntimeError("\ud800f")), r"x \(Raising\) cannot be read: \\ud800f \(rank"),
    "no text": (lambda: Raising(KeyError()), r"x \(Raising\) cannot be read: KeyError"),
    "a dtype": (lambda: Raising(KeyError("k"), dtype="odd"), r"x \(Raising of dtype odd\) cannot be read"),
    "dates": (lambda: unreadable("M8[D]"), r"x \(numpy.ndarray of dtype datetime64\[D\]\) cannot be read: "),
    "structures": (lambda: unreadable("i4,f4"), r"x \(numpy.ndarray of dtype .*f0.*\) cannot be read: "),
    "long floats": (lambda: unreadable(np.longdouble), r"x \(numpy.ndarray of dtype float|code 2"),
    "an answer": (lambda: Negated([1.0]), r"x \(Negated\) cannot be read: is_neg of its own"),
    "a stream": (lambda: Streaming(), r"x \(Streaming\) tells a stream by .* no number but a str"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_named_with_its_dtype_and_told(name):
    make, said = UNREADABLE[name]
    refused = threading.Event()

    def body(comm):
        if comm.rank == 0:
            with pytest.raises(UnsupportedTypeError, match=said):
                comm.all_reduce(make())
            return refused.wait(10)
        try:
            with pytest.raises(MismatchError, match="rank 0's all_reduce #1 was refused"):
                comm.all_reduce(np.ones(2))
        finally:
            refused.set()
        return None

    run_ranks(2, body)


class Bare(Producer):
    """Its error comes from the class, not from its memory."""

    def __init__(self, *said):
        super().__init__()
        self.said = said

    @property
    def __array_namespace__(self):
        raise OSError(*self.said)


@pytest.mark.parametrize(("text", "told_as"), [((), "OSError"), (("o\ud800f",), r"o\\ud800f")])
def test_errors_of_any_kind_are_told_to_the_other_ranks(text, told_as):
    refused = threading.Event()

    def body(comm):
        if comm.rank == 0:
            try:
                comm.all_gather(Bare(*text))
            finally:
                refused.wait(10)
        try:
            comm.all_gather(np.ones(4, np.float32))
        finally:
            refused.set()

    began = time.monotonic()
    raised, told = outcomes_of(2, body)
    assert type(raised) is OSError and time.monotonic() - began < PROMPT_S
    with pytest.raises(MismatchError, match=f"rank 0's all_gather #1 was refused: {told_as}"):
        raise told


def test_a_class_without_a_module_is_taken():
    nameless = type("Nameless", (Producer,), {})
    nameless.__module__ = None
    run_ranks(2, lambda comm: comm.all_reduce(nameless()))
    with pytest.raises(UnsupportedTypeError, match="no new array can be made like a Nameless"):
        run_ranks(1, lambda comm: comm.all_gather(nameless()))


def test_classes_of_arrays_are_not_kept():
    def body(comm):
        kinds = []
        for _ in range(3):
            kind = type("Kind", (np.ndarray,), {})
            comm.all_reduce(np.ones(4).view(kind))
            kinds.append(weakref.ref(kind))
            del kind
        gc.collect()
        return [kind() for kind in kinds]

    assert run_ranks(1, body) == [[None] * 3]
