"""gpucomm.empty: the allocator, and collectives on arrays that all ranks can read where they lie."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path

import numpy as np
import pytest
from conftest import pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from on_emulated import SANITIZER
from ranks import run_ranks
from test_collectives import expect, inputs, run

import gpucomm
from gpucomm import Communicator, _core, errors

MIB = 1 << 20
COUNTS = [9000] if SANITIZER else [9000, 65537]


def alone(heap_bytes: int | None = None) -> Communicator:
    return Communicator("local", 0, 1, region=_core.Region(1, heap_bytes))


# the allocator


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_blocks_are_aligned_and_apart_and_all_comes_back(data):
    comm = alone(8 * MIB)
    blocks = []
    for _ in range(data.draw(st.integers(1, 40))):
        if blocks and data.draw(st.booleans()):
            blocks.pop(data.draw(st.integers(0, len(blocks) - 1)))
            continue
        nbytes = data.draw(st.sampled_from([0, 1, 63, 64, 65, 5000, 65535, 65536, 100_000, MIB, 3 * MIB]))
        try:
            blocks.append(comm.heap_block(nbytes))
        except errors.UnavailableError:
            assert comm.heap["used_bytes"] + nbytes > MIB  # it was not empty
            continue
        assert blocks[-1].address % (4096 if nbytes >= 65536 else 64) == 0
        spans = sorted((b.address, b.address + max(b.nbytes, 1)) for b in blocks)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert comm.heap["used_bytes"] >= sum(b.nbytes for b in blocks)
    blocks.clear()
    assert comm.heap["used_bytes"] == 0
    assert comm.heap_block(8 * MIB).nbytes == 8 * MIB, "free blocks were not joined"


def test_a_full_heap_is_a_sentence_with_sizes():
    comm = alone(4 * MIB)
    kept = gpucomm.empty(3 * MIB, "uint8", comm=comm)
    with pytest.raises(
        errors.UnavailableError, match=r"4194304 bytes has no room for 2097152 more: 3145728 are"
    ):
        gpucomm.empty(2 * MIB, "uint8", comm=comm)
    with pytest.raises(
        errors.UnavailableError, match=r"5242880 bytes do not fit .* of 4194304 bytes \(rank 0 of 1"
    ):
        gpucomm.empty(5 * MIB, "uint8", comm=comm)
    del kept
    assert gpucomm.empty(2 * MIB, "uint8", comm=comm).nbytes == 2 * MIB


def test_no_heap_is_a_sentence():
    comm = alone(0)
    assert comm.heap["size_bytes"] == 0 and "GPUCOMM_HEAP_MIB" in comm.heap["note"]
    with pytest.raises(errors.UnavailableError, match="there is no shared heap: the communicator was made"):
        gpucomm.empty(3, comm=comm)


def test_much_freed_memory_goes_back_to_the_machine():
    comm = alone(2048 * MIB)
    x = gpucomm.empty(600 * MIB, "uint8", comm=comm)
    assert comm.heap["memory_bytes"] == 600 * MIB
    x[::4096] = 1
    del x
    assert comm.heap["memory_bytes"] == 0
    x = gpucomm.empty(4 * MIB, "uint8", comm=comm)
    assert not x.any(), "given back, it reads as zeros"
    del x
    assert comm.heap["memory_bytes"] == 4 * MIB, "a little is kept warm"


@pytest.mark.parametrize("first", [0, 1])
def test_what_lies_beside_freed_memory_goes_back_too(first):
    comm = alone(2048 * MIB)
    blocks = [gpucomm.empty(300 * MIB, "uint8", comm=comm) for _ in range(2)]
    assert comm.heap["memory_bytes"] == 600 * MIB
    del blocks[first]
    assert comm.heap["memory_bytes"] == 300 * MIB
    blocks.clear()
    assert comm.heap["memory_bytes"] == 0


# the arrays


@pytest.mark.parametrize("like", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool", "uint8", "complex64"])
@pytest.mark.parametrize("shape", [5, (3, 4), (), (0, 3), [2, 2, 2]])
def test_shapes_and_dtypes(like, dtype, shape):
    if like == "torch":
        pytest.importorskip("torch")
    x = gpucomm.empty(shape, dtype, comm=alone(), like=like)
    assert tuple(x.shape) == np.empty(shape).shape
    assert str(x.dtype).removeprefix("torch.") == dtype
    x[...] = 1
    assert (x == 1).all()


def test_dtypes_as_objects():
    torch = pytest.importorskip("torch")
    comm = alone()
    assert gpucomm.empty(3, np.dtype("int16"), comm=comm).dtype == np.int16
    assert gpucomm.empty(3, np.float64, comm=comm).dtype == np.float64
    assert gpucomm.empty(3, torch.float16, comm=comm).dtype == np.float16
    for fields in ("f4,f4", np.dtype([("a", "f4")]), [("a", "f4"), ("b", "i2")]):
        assert gpucomm.empty((2, 3), fields, comm=comm).dtype == np.dtype(fields)
    assert gpucomm.empty(3, torch.bfloat16, comm=comm, like="torch").dtype == torch.bfloat16
    assert gpucomm.empty(3, np.int32, comm=comm, like="torch").dtype == torch.int32


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((-1,), {}, r"shape must not be negative, got \(-1,\)"),
        ((2.5,), {}, r"shape must be a whole number or several, got 2\.5"),
        (((2, None),), {}, r"shape must be a whole number or several, got \(2, None\)"),
        ((2**62,), {}, "an array of 18446744073709551616 bytes fits no memory"),
        ((3, "bfloat16"), {}, "NumPy has no dtype 'bfloat16': try like='torch'"),
        ((3, "object"), {}, "objects cannot lie in shared memory"),
        ((3,), {"like": "jax"}, "like must be 'numpy' or 'torch', got 'jax'"),
        (((2**62, 2**62, 0),), {}, r"shape must be of less than 2\^63 bytes but for its 0, got \(46116"),
        (((2**70, 0),), {"like": "torch"}, r"shape must be of less than 2\^63 bytes but for its 0"),
        (((1,) * 65,), {}, "NumPy takes no shape of 65 dimensions"),
        ((3, str), {}, "dtype 'str' must say how long an element is: it has 0 bytes"),
        (((2, 0), "S0"), {}, "dtype 'S0' must say how long an element is"),
        ((3, np.dtype("V0")), {}, "must say how long an element is"),
        ((3, "(2,)f4"), {}, r"dtype '\(2,\)f4' has a shape of its own: add it to shape"),
        ((3, "(2,f4"), {}, r"NumPy has no dtype '\(2,f4'"),
        ((3, None), {}, "NumPy has no dtype 'None'"),
        (
            (3, "quint8"),
            {"like": "torch"},
            "torch.quint8 cannot lie in shared memory: a dtype must be of whole",
        ),
        ((3, "uint4"), {"like": "torch"}, "torch.uint4 cannot lie in shared memory"),
        ((3,), {"comm": "c"}, r"comm must be a communicator, or None for that of init\(\), got 'c'"),
        ((3,), {"comm": 0}, "comm must be a communicator"),
        (
            (3,),
            {"comm": gpucomm.NonMember(1, 2, [0])},
            "rank 1 of 2 is not in the group of ranks 0, and so has",
        ),
    ],
)
def test_bad_arguments(arguments, options, text):
    if options.get("like") == "torch":
        pytest.importorskip("torch")
    options = {"comm": alone()} | options
    with pytest.raises(errors.InvalidArgumentError, match=text):
        gpucomm.empty(*arguments, **options)


def test_the_communicator_of_init_is_the_default():
    with gpucomm.init() as comm:
        x = gpucomm.empty(3)
        assert comm.heap["used_bytes"] >= x.nbytes


def test_arrays_outlive_their_communicator():
    comm = alone()
    x = gpucomm.empty(1000, comm=comm)
    x[:] = 7
    view = x[10:20]
    comm.close()
    del x, comm
    gc.collect()
    assert view.tolist() == [7] * 10


# collectives


def in_heap(comm, array):
    """A copy of it in the shared heap."""
    copy = gpucomm.empty(array.shape, array.dtype, comm=comm)
    copy[...] = array
    return copy


def contract(comm, collective, algorithm, cases):
    """Which cases differ between private arrays and arrays of which some ranks' lie in the heap."""
    wrong = []
    for dtype, count in cases:
        for op in ("sum", "mean") if "reduce" in collective and dtype != "uint8" else ("sum",):
            arrays = inputs(collective, dtype, comm.world, count)
            root = count % comm.world
            options = {"algorithm": algorithm} | ({"op": op} if "reduce" in collective else {})
            private = run(comm, collective, arrays[comm.rank].copy(), root, **options)
            for shared in (range(comm.world), range(0, comm.world, 2), [comm.world - 1]):
                mine = arrays[comm.rank]
                x = in_heap(comm, mine) if comm.rank in shared else mine.copy()
                for segments in (None, 3):
                    x[...] = mine
                    result = run(comm, collective, x, root, segments=segments, **options)
                    if private is not None and not np.array_equal(result, private):
                        wrong.append((dtype, count, op, list(shared), segments))
            if op == "sum" and private is not None:
                expected = expect(collective, arrays, comm.rank, root, op)
                wrong += [] if np.array_equal(private, expected) else [("private", dtype, count)]
    return wrong


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize(("collective", "algorithm"), pairs())
def test_the_same_bits_as_private_arrays(collective, algorithm, world):
    cases = list(itertools.product(("float32", "float16", "uint8"), COUNTS))
    assert run_ranks(world, lambda comm: contract(comm, collective, algorithm, cases)) == [[]] * world


@pytest.fixture(scope="module", params=[2, 4])
def processes(request):
    pytest.importorskip("cloudpickle")
    env = {"PYTHONPATH": str(Path(__file__).parent), "GPUCOMM_CMA": "0"}  # private arrays are staged
    with gpucomm.local(request.param, env=env) as world:
        yield world


def contract_of_processes(comm, collective, algorithm):
    from test_heap import contract

    cases = [("float16", 9000), ("uint8", 400_001), ("float32", 400_001)]
    return contract(comm, collective, algorithm, cases)


@pytest.mark.processes
@pytest.mark.parametrize(("collective", "algorithm"), [*pairs(), ("all_reduce", "auto")])
def test_the_same_bits_over_processes(processes, collective, algorithm):
    assert processes.run(contract_of_processes, collective, algorithm) == [[]] * processes.ranks


def out_of_place(comm):
    """Results of calls with out=, and of parts of one array."""
    import numpy as np

    import gpucomm

    x, out = (gpucomm.empty(300_000, comm=comm) for _ in range(2))
    x[:], out[:] = comm.rank + 1, -1
    comm.all_reduce(x, out=out, algorithm="direct")
    kept = set(x.tolist()) == {comm.rank + 1.0}
    part = x[1000:200_000]
    comm.all_reduce(part, algorithm="direct")
    return (
        kept,
        set(out.tolist()),
        set(part.tolist()),
        float(x[999]),
        float(x[200_000]),
        np.shares_memory(x, part),
    )


@pytest.mark.processes
def test_nothing_else_is_touched(processes):
    total = processes.ranks * (processes.ranks + 1) / 2
    for rank, seen in enumerate(processes.run(out_of_place)):
        assert seen == (True, {total}, {total}, rank + 1.0, rank + 1.0, True)


def traffic(comm, algorithm):
    """Messages of an all_reduce of a private and of a shared array."""
    import numpy as np

    import gpucomm

    seen = []
    for x in (np.ones(1 << 20, np.float32), gpucomm.empty(1 << 20, comm=comm)):
        x[:] = 1
        before = comm.stats()
        comm.all_reduce(x, algorithm=algorithm, segments=1)
        after = comm.stats()
        seen.append(tuple(after[k] - before[k] for k in ("bytes_sent", "bytes_received", "messages_sent")))
    return seen


@pytest.mark.processes
def test_a_message_in_place_is_one_message(processes):
    for private, shared in processes.run(traffic, "direct"):
        assert private[:2] == shared[:2], "the same bytes"
        assert shared[2] == 2 * (processes.ranks - 1) < private[2]


def many(comm, calls):
    """How many bytes this process has grown by, over many calls and arrays."""
    import resource

    import gpucomm

    def once(count):
        x = gpucomm.empty(count, comm=comm)
        x[:] = 1
        comm.all_reduce(x)
        comm.all_reduce(x, async_op=True).wait()
        return float(x[-1])

    total = float(comm.world) ** 2
    wrong = sum(once(20_000) != total for _ in range(200))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wrong += sum(once(20_000 + i % 7) != total for i in range(calls))
    return wrong, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10


@pytest.mark.processes
def test_thousands_of_calls_without_growth(processes):
    for wrong, grown in processes.run(many, 3_000 // processes.ranks):
        assert wrong == 0
        assert grown < 4 * MIB


def test_arrays_of_another_communicator_are_private_ones():
    def body(comm):
        group = comm.split(0)
        x = gpucomm.empty(100_000, comm=comm)
        x[:] = 1
        group.all_reduce(x, algorithm="direct")
        y = gpucomm.empty(100_000, comm=group)
        y[:] = 1
        comm.all_reduce(y, algorithm="direct")
        return set(x.tolist()) | set(y.tolist())

    assert run_ranks(3, body) == [{3.0}] * 3


def test_emulated_links_stage_them():
    def body(comm):
        x = gpucomm.empty(100_000, comm=comm)
        x[:] = comm.rank
        before = comm.stats()["messages_sent"]
        comm.all_reduce(x, algorithm="direct", segments=1)
        return set(x.tolist()), comm.stats()["messages_sent"] - before > 2

    assert run_ranks(2, body, links=_core.Links("switch")) == [({1.0}, True)] * 2
