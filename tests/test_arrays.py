"""Arrays of every library that is there: the same calls, without copies."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
import time
import types

import numpy as np
import pytest
from conftest import ROOTED, pairs
from ranks import PROMPT_S, run_ranks

from gpucomm.arrays import empty_like
from gpucomm.errors import MismatchError, UnsupportedTypeError


class FakeCupy:
    """An array type that is not NumPy's, on host memory: only the protocol makes it an array."""

    def __init__(self, array):
        self.array = array

    dtype = property(lambda self: self.array.dtype)

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array_namespace__(self):
        class Namespace:
            @staticmethod
            def empty(shape, dtype):
                return FakeCupy(np.empty(shape, dtype))

        return Namespace


class OldProducer(FakeCupy):
    """DLPack before 1.0: takes no max_version and gives an unversioned capsule."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


OldProducer.__module__ = "cupy"  # whose arrays are known to be mutable


def torch_tensor(values):
    return pytest.importorskip("torch").tensor(values)


MAKERS = {
    "numpy": np.array,
    "torch": torch_tensor,
    "fake_cupy": lambda v: FakeCupy(np.array(v)),
    "old_producer": lambda v: OldProducer(np.array(v)),
}


def listed(x):
    return (x.array if isinstance(x, FakeCupy) else x).tolist()


@pytest.mark.parametrize("kind", MAKERS)
def test_every_collective_on_every_kind_of_array(kind):
    make = MAKERS[kind]

    def body(comm):
        r = float(comm.rank)
        x = make([r, 1.0])
        assert comm.all_reduce(x) is x
        reduced = comm.reduce(make([r]), 0, "max")
        return [
            listed(x),
            listed(comm.broadcast(make([r]), 1)),
            listed(reduced),
            listed(comm.all_gather(make([r]))),
            listed(comm.reduce_scatter(make([1.0, 2.0])))[0] == 2.0 * (r + 1),
        ]

    assert run_ranks(2, body) == [[[1.0, 2.0], [1.0], [1.0], [0.0, 1.0], True]] * 2


def other_order(x):
    return x.astype(x.dtype.newbyteorder())


def locked(x):
    x.flags.writeable = False
    return x


NUMPY = {
    **{f"{code}": np.zeros((2, 3), code) for code in "?bBhHiIlLqQefdFDgGOUM"},
    "no elements": np.zeros((0, 4), np.float32),
    "no dimensions": np.array(1.5),
    "transposed": np.zeros((2, 3)).T,
    "every other": np.zeros(6)[::2],
    "read-only": locked(np.zeros(3)),
    "the other byte order": other_order(np.arange(3.0)),
    "a structure": np.zeros(2, "i4,f4"),
    "a subclass": np.zeros(3).view(np.recarray),
}


@pytest.mark.parametrize("name", NUMPY)
def test_numpy_is_read_as_by_dlpack(name):
    """Its arrays are read where they stand: what is taken, and as what, must not differ."""
    array = NUMPY[name]

    def outcome(comm, x):
        try:
            result = comm.all_reduce(x) if name == "read-only" else comm.all_gather(x)
        except Exception as error:
            return type(error)
        call = [row["call"] for row in comm.flight_log() if row["rank"] == comm.rank][-1]
        return call.partition("(")[2], np.shape(listed(result)), listed(result)

    def body(comm):
        return outcome(comm, array), outcome(comm, FakeCupy(array))

    for direct, by_dlpack in run_ranks(2, body):
        assert direct == by_dlpack


def test_results_are_of_the_callers_library():
    torch = pytest.importorskip("torch")

    def body(comm):
        gathered = comm.all_gather(torch.ones(2, 3, dtype=torch.bfloat16))
        fake = comm.all_gather(FakeCupy(np.ones(2)))
        return gathered.dtype, tuple(gathered.shape), type(fake)

    assert run_ranks(2, body) == [(torch.bfloat16, (4, 3), FakeCupy)] * 2


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_halves_are_folded_in_float32_and_rounded_once(name):
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    world = 5
    rows = torch.randn(world, 1003, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = rows[0].float()
    for row in rows[1:]:
        expected = expected + row.float()

    def body(comm):
        return comm.all_reduce(rows[comm.rank].clone(), algorithm="direct")

    for result in run_ranks(world, body):
        assert torch.equal(result, expected.to(dtype))


@pytest.mark.parametrize(("collective", "algorithm"), pairs())
def test_bfloat16_by_every_algorithm(collective, algorithm):
    torch = pytest.importorskip("torch")

    def body(comm):
        x = torch.full((9, 100), comm.rank + 1.0).to(torch.bfloat16)
        root = [2] if collective in ROOTED else []
        result = getattr(comm, collective)(x, *root, algorithm=algorithm)
        return None if result is None else {v.item() for v in result.unique()}

    every, total = {1.0, 2.0, 3.0}, {6.0}
    expected = {"broadcast": [{3.0}] * 3, "all_gather": [every] * 3, "reduce": [{1.0}, {2.0}, total]}
    expected |= {"scatter": [{3.0}] * 3, "all_to_all": [every] * 3, "gather": [None, None, every]}
    assert run_ranks(3, body) == expected.get(collective, [total] * 3)


def test_anything_can_be_moved():
    torch = pytest.importorskip("torch")

    def body(comm):
        moved = []
        for dtype in (torch.complex64, torch.float8_e4m3fn, torch.uint16, torch.bool):
            x = torch.zeros(9).to(dtype)
            if comm.rank == 0:
                x = torch.arange(9).to(dtype)
            comm.broadcast(x, 0)
            moved.append(torch.equal(x.view(torch.uint8), torch.arange(9).to(dtype).view(torch.uint8)))
        return all(moved)

    assert run_ranks(2, body) == [True] * 2


def test_a_tensor_that_requires_grad_is_reduced_in_place():
    torch = pytest.importorskip("torch")

    def body(comm):
        p = torch.nn.Parameter(torch.ones(3))
        comm.all_reduce(p)
        return p.tolist()

    assert run_ranks(2, body) == [[2.0] * 3] * 2


@pytest.mark.parametrize(
    "make", [lambda t: t.ones(3, 4).t(), lambda t: t.ones(3, device="meta"), lambda t: t.ones(3).to_sparse()]
)
def test_what_is_no_plain_tensor_is_refused(make):
    torch = pytest.importorskip("torch")

    def body(comm):
        with pytest.raises(UnsupportedTypeError) as refusal:
            comm.all_reduce(make(torch))
        assert "\n" not in str(refusal.value)  # no trace of torch's own

    run_ranks(1, body)


def test_an_interrupt_while_an_array_is_read_is_none_of_its_faults():
    class Interrupted:
        def __dlpack__(self, **_):
            raise KeyboardInterrupt

    def body(comm):
        with pytest.raises(KeyboardInterrupt):
            comm.all_reduce(Interrupted())

    run_ranks(1, body)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_numpy_arrays_of_ml_dtypes_are_taken(name):
    """As results for JAX's arrays are; NumPy itself does not give them to DLPack."""
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    x = np.arange(4).astype(dtype)

    def body(comm):
        gathered = comm.all_gather(x)
        listed = comm.all_gather([x, x[:1]])
        summed = comm.all_reduce(x.copy()) if name == "bfloat16" else x + x
        return gathered.dtype == dtype, [np.float32(y).tolist() for y in (gathered, *listed, summed)]

    twice = [0.0, 1.0, 2.0, 3.0] * 2
    assert run_ranks(2, body) == [(True, [twice, twice, [0.0] * 2, [0.0, 2.0, 4.0, 6.0]])] * 2


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_jax_arrays_are_read_but_never_written():
    jnp = pytest.importorskip("jax.numpy")

    def body(comm):
        x = jnp.ones(4) * comm.rank
        with pytest.raises(UnsupportedTypeError, match="read-only"):
            comm.all_reduce(x)
        out = np.empty(4, np.float32)
        comm.all_reduce(x, out=out)
        return out.tolist(), x.tolist(), comm.all_gather(x).shape

    assert run_ranks(2, body) == [([1.0] * 4, [float(r)] * 4, (8,)) for r in range(2)]


@pytest.mark.parametrize("make", [FakeCupy, OldProducer])
def test_what_is_refused_is_given_back(make):
    memory = np.ones((6, 4), np.float32)

    def body(comm):
        before = sys.getrefcount(memory)
        for wrong in (memory[:, ::2], memory.view("u4").T):
            with pytest.raises(UnsupportedTypeError, match="C-contiguous"):
                comm.all_reduce(make(wrong))
            del wrong
        return sys.getrefcount(memory) - before

    assert run_ranks(1, body) == [0]


def test_views_that_only_say_what_they_hold_are_refused():
    torch = pytest.importorskip("torch")
    x = torch.tensor([1 + 2j, 3 - 1j])

    def body(comm):
        with pytest.raises(UnsupportedTypeError, match="resolve_conj"):
            comm.broadcast(x.conj())
        with pytest.raises(UnsupportedTypeError, match="resolve_neg"):
            comm.all_reduce(x[:1].conj().imag)  # real, of one element: contiguous
        with pytest.raises(UnsupportedTypeError, match="resolve_neg"):
            comm.all_reduce(np.zeros(1, np.float32), out=x[:1].conj().imag)
        assert comm.all_reduce(x[:1].conj().imag.resolve_neg()).tolist() == [-2]
        with pytest.raises(UnsupportedTypeError, match="resolve_neg"):
            comm.all_reduce(torch.zeros(2000, dtype=torch.complex64).conj().imag.as_strided((2000,), (1,)))
        return comm.broadcast(x.conj().resolve_conj()).tolist()

    assert run_ranks(1, body) == [[1 - 2j, 3 + 1j]]


def test_integers_of_few_bits_are_refused():
    """DLPack would have them bytes, whose sums such elements do not hold."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "uint4"):
        pytest.skip("this torch has no such dtypes")

    def body(comm):
        x = torch.full((4,), 15, dtype=torch.uint8)
        with pytest.raises(UnsupportedTypeError, match=r"torch.uint4, .*x.view\(torch.uint8\)"):
            comm.all_reduce(x.view(torch.uint4))
        return comm.all_reduce(x).tolist(), comm.all_reduce(x.to(torch.int8)).tolist()

    assert run_ranks(2, body) == [([30] * 4, [60] * 4)] * 2


def test_new_arrays_are_made_by_the_module_of_a_type_without_a_namespace(monkeypatch):
    """As CuPy's."""
    module = types.ModuleType("like_cupy")
    module.empty = np.empty
    monkeypatch.setitem(sys.modules, "like_cupy", module)
    monkeypatch.setattr(np, "empty", None)
    x = type("ndarray", (), {"__module__": "like_cupy._core", "dtype": np.float32})()
    made = empty_like(x, (2, 3))
    assert made.shape == (2, 3) and made.dtype == np.float32


@pytest.mark.parametrize(("stream", "expected"), [(None, (1, 0)), (7, (1, 7))])
def test_arrays_of_cupy_are_made_on_the_device_of_x_and_on_the_stream_that_is_to_use_them(
    monkeypatch, stream, expected
):
    """Its memory pool has a part for each, and makes nobody wait for what another stream still does there."""
    current = {"device": 0, "stream": 0}

    @contextlib.contextmanager
    def on(**told):
        before = dict(current)
        current.update(told)
        yield
        current.update(before)

    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(ExternalStream=lambda pointer: on(stream=pointer))
    cupy.empty = lambda shape, dtype: (shape, current["device"], current["stream"])
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    x = type("ndarray", (), {"__module__": "cupy", "dtype": np.float32, "device": on(device=1)})()
    assert empty_like(x, (2, 3), stream) == ((2, 3), *expected)
    assert current == {"device": 0, "stream": 0}


class OnlyDlpack:
    """All that DLPack asks of an array: no dtype, no shape, no reshape."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Shaped(OnlyDlpack):
    """With a dtype, but of no namespace that makes arrays."""

    shape, dtype = (4,), "float99"


def one(call):
    return lambda comm, make: call(comm, make(np.ones(4)))


def two(call):
    return lambda comm, make: call(comm, [make(np.ones(4)), make(np.ones(4))])


NEW = "no new array can be made like a OnlyDlpack .*no attribute 'dtype'.*: pass out= .* \\(rank 0 of 2\\)$"
LISTED = r"x\[0\], a OnlyDlpack, has no dtype, which .* a list needs: pass it by itself, .* \(rank 0 of 2\)"
# What cannot be made like an array that is no more than DLPack asks for.
UNLIKE = {
    "all_gather": (OnlyDlpack, one(lambda c, x: c.all_gather(x)), NEW),
    "all_gather, auto": (OnlyDlpack, one(lambda c, x: c.all_gather(x, algorithm="auto")), NEW),
    "gather": (OnlyDlpack, one(lambda c, x: c.gather(x, 0)), NEW),
    "reduce_scatter": (OnlyDlpack, one(lambda c, x: c.reduce_scatter(x)), NEW),
    "scatter": (OnlyDlpack, one(lambda c, x: c.scatter(x, 0)), NEW),
    "all_to_all": (OnlyDlpack, one(lambda c, x: c.all_to_all(x)), NEW),
    "another dtype": (
        Shaped,
        one(lambda c, x: c.all_gather(x)),
        r"like a Shaped .*float99.*: pass out= .*2\)$",
    ),
    "all_reduce of a list": (OnlyDlpack, two(lambda c, x: c.all_reduce(x)), LISTED),
    "broadcast of a list": (OnlyDlpack, two(lambda c, x: c.broadcast(x, 0)), LISTED),
    "all_gather of a list": (OnlyDlpack, two(lambda c, x: c.all_gather(x)), LISTED),
    "all_gather of one in a list": (OnlyDlpack, one(lambda c, x: c.all_gather([x])), LISTED),
    "another dtype in a list": (
        Shaped,
        two(lambda c, x: c.all_gather(x)),
        r"like a Shaped .*float99.* of 2\)$",
    ),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_an_array_of_which_no_other_can_be_made_is_a_sentence_and_told(name):
    make, call, said = UNLIKE[name]
    refused = threading.Event()

    def body(comm):
        if comm.rank == 0:
            with pytest.raises(UnsupportedTypeError, match=said):
                call(comm, make)
            assert comm.stats()["bytes_sent"] == 0
            refused.wait(10)  # the other one does not see it from our end
            return
        try:
            with pytest.raises(MismatchError, match=r"rank 0's \w+ #1 was refused: .* a (OnlyDlpack|Shaped)"):
                call(comm, np.array)
                comm.barrier()  # a gather waits for nobody
        finally:
            refused.set()

    began = time.monotonic()
    run_ranks(2, body)
    assert time.monotonic() - began < PROMPT_S


def test_a_list_of_which_no_other_can_be_made_is_packed_in_numpys_memory():
    def body(comm):
        xs, outs = [np.ones(4), np.full(4, 2.0)], [np.zeros(4), np.zeros(4)]
        comm.all_reduce([Shaped(x) for x in xs], out=outs)
        comm.all_reduce([Shaped(x) for x in xs])
        return [x.tolist() for x in xs + outs]

    assert run_ranks(2, body) == [[[2.0] * 4, [4.0] * 4] * 2] * 2


def test_what_has_no_dtype_is_taken_where_no_other_array_is_made():
    def body(comm):
        x, out = np.ones(4), np.zeros(4 * comm.world)
        comm.all_reduce(OnlyDlpack(x))
        comm.all_gather(OnlyDlpack(x), out=OnlyDlpack(out))
        comm.all_reduce([OnlyDlpack(x)])
        comm.all_reduce([np.ones(3), OnlyDlpack(x)])
        comm.all_gather([np.ones(4)] * 2, out=[OnlyDlpack(out), OnlyDlpack(np.zeros(8))])
        return x.tolist(), out.tolist()

    assert run_ranks(2, body) == [([8.0] * 4, [1.0] * 8)] * 2


def test_new_arrays_for_what_passes_those_of_jax_on_are_of_numpy():
    namespace = types.SimpleNamespace(__name__="jax.numpy", empty=None)
    attributes = {"__array_namespace__": lambda self: namespace, "__dlpack_device__": lambda self: (1, 0)}
    wrapper = type("Param", (), {"__module__": "flax.nnx", "dtype": np.float32, **attributes})()
    assert type(empty_like(wrapper, (2,))) is np.ndarray


def test_no_new_array_is_made_for_jax_on_a_gpu():
    x = type("ArrayImpl", (), {"__module__": "jaxlib._jax", "__dlpack_device__": lambda self: (2, 0)})()
    with pytest.raises(UnsupportedTypeError, match="on a GPU needs out="):
        empty_like(x, (2,))
