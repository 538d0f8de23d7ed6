"""root, segments and counts are whole numbers: nothing is cut to one."""

from __future__ import annotations

import time
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from ranks import PROMPT_S, outcomes_of, run_ranks

from gpucomm.errors import InvalidArgumentError, MismatchError

X = np.ones(4, np.float32)


class Cut:
    def __int__(self) -> int:
        return 1


class Raises:
    def __index__(self) -> int:
        raise ValueError("no")


NONE = [
    *(np.float32(1.9), np.float16(1), np.float64(1), 1.0, np.array(1.9), np.array(1.0, np.float32)),
    *(
        Decimal("1.9"),
        Fraction(19, 10),
        True,
        np.True_,
        np.timedelta64(1, "s"),
        "1",
        Cut(),
        Raises(),
        1 << 80,
    ),
]
CALLS = {
    "root": [
        lambda c, bad: c.broadcast(X.copy(), bad),
        lambda c, bad: c.broadcast([X.copy()], root=bad),
        lambda c, bad: c.reduce(X.copy(), root=bad),
        lambda c, bad: c.gather(X, bad),
        lambda c, bad: c.scatter(X, bad),
    ],
    "segments": [
        lambda c, bad: c.all_reduce(X.copy(), segments=bad),
        lambda c, bad: c.all_reduce([X.copy()], segments=bad),
    ],
    r"counts\[1\]": [
        lambda c, bad: c.all_gather(X, counts=[4, bad]),
        lambda c, bad: c.gather(X, counts=(4, bad)),
        lambda c, bad: c.reduce_scatter(X, counts=[2, bad]),
        lambda c, bad: c.all_to_all(X, counts=[2, bad]),
    ],
    r"out_counts\[1\]": [lambda c, bad: c.all_to_all(X, counts=[2, 2], out_counts=[2, bad])],
}


@pytest.mark.parametrize(("name", "call"), [(name, call) for name, calls in CALLS.items() for call in calls])
def test_what_is_no_whole_number_is_refused_with_its_value(name, call):
    def body(comm):
        for bad in NONE:
            with pytest.raises(
                InvalidArgumentError, match=rf"^{name} must be a whole number of \d\d bits, got "
            ) as caught:
                call(comm, bad)
            assert str(caught.value).endswith(f"got {bad!r} (rank {comm.rank} of 2)")
        return True

    assert run_ranks(2, body) == [True] * 2


@pytest.mark.parametrize(("name", "call"), [(name, call) for name, calls in CALLS.items() for call in calls])
def test_of_tensors_those_of_booleans_are_none(alone, name, call):
    torch = pytest.importorskip("torch")
    for bad in (torch.tensor(True), torch.tensor([False])):
        with pytest.raises(InvalidArgumentError, match=rf"^{name} must be .*, got tensor"):
            call(alone, bad)


def test_arrays_of_floats_are_no_counts():
    def body(comm):
        for counts in (np.array([3.7, 1.2]), np.array([4, 1], np.float32), np.array([True, True])):
            with pytest.raises(InvalidArgumentError, match=r"counts\[0\] must be a whole number"):
                comm.all_gather(X, counts=counts)
        return True

    assert run_ranks(2, body) == [True] * 2


@pytest.mark.parametrize("bad", [np.float32(0), True, "auto"])
def test_the_other_ranks_hear_of_it(bad):
    def body(comm):
        began = time.monotonic()
        try:
            comm.all_reduce(X.copy())
            comm.gather(X, bad if comm.rank else 0)
        finally:
            assert time.monotonic() - began < PROMPT_S

    first, second = outcomes_of(2, body)
    assert isinstance(second, InvalidArgumentError)
    assert isinstance(first, MismatchError)
    assert "rank 1's gather #" in str(first) and f"got {bad!r} (rank 1 of 2)" in str(first)


def counts_of(kind):
    if kind == "torch":
        return list(pytest.importorskip("torch").tensor([3, 1]))
    return {"list": list, "tuple": tuple, "numpy": np.array}[kind]([3, 1])


@pytest.mark.parametrize("kind", ["list", "tuple", "numpy", "torch"])
def test_whole_numbers_of_any_kind_are_taken(kind):
    counts = counts_of(kind)

    def body(comm):
        one = counts[1]
        x = np.full(int(counts[comm.rank]), float(comm.rank))
        comm.all_reduce(x.copy()[:1], segments=one)
        objects = comm.broadcast_object(comm.rank, one), comm.gather_objects(1, one) is None
        with comm.subset(counts[1:]) as alone, comm.split(one, one) as both:
            groups = bool(alone), both.world
        told = comm.all_gather(x, counts=counts).tolist(), comm.broadcast(x[:1].copy(), one)[0]
        return *told, *objects, *groups

    assert run_ranks(2, body) == [([0, 0, 0, 1], 1, 1, rank == 0, rank == 1, 2) for rank in range(2)]
