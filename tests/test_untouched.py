"""Calls that ranks do not make alike, seen before data move: x is left as it is, and out to its own rank.

Data move between ranks that call alike. Of two there are none; of the first call of "auto" all look at each
other's. In out there may be what the rank itself has, as in all_gather, and nothing of another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOTED, pairs
from ranks import PROMPT_S, run_ranks

import gpucomm
from gpucomm import Communicator
from gpucomm.errors import ClosedError, MismatchError

How = dict[str, Any]

CASES = [(collective, {"algorithm": name}) for collective, name in pairs()]
CASES += [(collective, {"algorithm": name, "codec": "int8"}) for collective, name in pairs(coded=True)]
BEFORE = 77  # in out; x is all 1 + rank, so that neither another rank's nor a sum's element is either
IN_PLACE = ("all_reduce", "reduce", "all_to_all")


def changes(collective: str, how: How) -> Iterator[How]:
    """What one rank may say otherwise than the others."""
    coded = "codec" in how
    yield {"count": 9}
    yield {"dtype": "float16" if coded else "int32"}
    yield from ({"algorithm": a} for _, a in pairs(collective, coded=coded) if a != how["algorithm"])
    if collective in ("all_reduce", "reduce", "reduce_scatter"):
        yield {"op": "mean"}
    if collective in ROOTED:
        yield {"root": 1}
    if coded:
        yield {"codec": "bf16"}


def sizes(collective: str, world: int, count: int) -> tuple[int, int]:
    """How many elements x and out have."""
    whole = count * world
    if collective in ("all_gather", "gather"):
        return count, whole
    if collective in ("reduce_scatter", "scatter"):
        return whole, count
    return (whole, whole) if collective == "all_to_all" else (count, count)


def touched(comm: Communicator, collective: str, how: How, shared: bool, in_place: bool) -> str:
    """What is wrong after a call that must fail on every rank."""
    said = dict(how)
    count, dtype = said.pop("count"), said.pop("dtype")
    x, out = (
        gpucomm.empty(n, dtype, comm=comm) if shared else np.empty(n, dtype)
        for n in sizes(collective, comm.world, count)
    )
    out = x if in_place else out
    out[:] = BEFORE
    x[:] = own = 1 + comm.rank
    if not in_place or collective == "all_to_all":
        said["out"] = out
    began = time.monotonic()
    try:
        getattr(comm, collective)(x, **said)
        comm.barrier()  # who only sends does not wait
        return "no error"
    except (MismatchError, ClosedError):
        if time.monotonic() - began > PROMPT_S:
            return "not at once"
    if not (x == own).all():
        return "x"
    return "" if (np.isclose(out, own, rtol=0.01) | (out == BEFORE)).all() else "out"


def every_change(
    comm: Communicator, collective: str, how: How, count: int, shared: bool = False, last: int = 0
) -> list[Any]:
    """The cases that are wrong on this rank, each in a group of its own; of the last changes, if told."""
    wrong = []
    for change in list(changes(collective, how))[-last:]:
        for in_place in [True] if collective == "broadcast" else {False, collective in IN_PLACE}:
            for odd in {0, comm.world - 1}:
                said = {"count": count, "dtype": "float32"} | how | (change if comm.rank == odd else {})
                with comm.subset(range(comm.world)) as group:
                    if found := touched(group, collective, said, shared, in_place):
                        wrong.append((found, change, in_place, odd))
    return wrong


@pytest.mark.parametrize(
    ("collective", "how"), [pytest.param(*case, id="-".join([case[0], *case[1].values()])) for case in CASES]
)
@pytest.mark.parametrize("count", [64, 100_000])
def test_of_two_ranks(collective, how, count):
    assert run_ranks(2, lambda comm: every_change(comm, collective, how, count)) == [[], []]


@pytest.mark.parametrize("collective", sorted({collective for collective, _ in CASES}))
def test_of_the_first_call_of_auto(collective):
    assert run_ranks(3, lambda comm: every_change(comm, collective, {"algorithm": "auto"}, 1000)) == [[]] * 3


def of_processes(comm):
    import test_untouched as here

    return [
        (collective, how, shared, found)
        for collective, how in here.CASES
        for shared in (False, True)
        if (found := here.every_change(comm, collective, how, 1 << 18, shared, last=1))
    ]


@pytest.mark.processes
def test_of_two_processes():
    """Arrays that the other rank could read, and write, where they lie."""
    with gpucomm.local(2, env={"PYTHONPATH": str(Path(__file__).parent)}) as world:
        assert world.run(of_processes) == [[], []]
