"""What the ranks of tests/test_mixed_calls.py run: calls of all kinds, many in flight.

All ranks draw the same calls, on several communicators; each waits for them when and in what order it likes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from conftest import ALGORITHMS, ROOTED, pairs
from reference import DTYPES, OPS, close, defined, values
from test_collectives import expect, inputs
from test_device_collectives import FOLDS

import gpucomm

COLLECTIVES = sorted({collective for collective, _ in pairs()})
Started = tuple[Any, Callable[[Any], bool]]  # a Work, and whether its result is right


def count_of(drawn: random.Random) -> int:
    return drawn.choice([drawn.randrange(4), drawn.randrange(300), drawn.randrange(40_000), 200_003])


def place(own: random.Random, comm: Any, like: np.ndarray) -> np.ndarray:
    """The same values in memory of any kind and alignment."""
    if own.random() < 0.3 and like.dtype != bool:
        array = gpucomm.empty(like.shape, like.dtype, comm=comm)
    else:
        start = own.randrange(40)
        array = np.empty(like.size + start, like.dtype)[start:]
    array[...] = like
    return array


def algorithm_of(drawn: random.Random, comm: Any, collective: str, coded: bool = False) -> str:
    across = len(set(comm.nodes)) > 1
    names = [name for _, name in pairs(collective, coded=coded)]
    return drawn.choice(["auto", *(n for n in names if ALGORITHMS[n]["across_nodes"] or not across)])


def collective_call(drawn: random.Random, own: random.Random, comm: Any) -> Started:
    collective, dtype = drawn.choice(COLLECTIVES), drawn.choice(DTYPES)
    op = drawn.choice([op for op in OPS if defined(op, dtype)]) if collective in FOLDS else "sum"
    root, rank = drawn.randrange(comm.world), comm.rank
    arrays = inputs(collective, dtype, comm.world, count_of(drawn), op)
    x, options = place(own, comm, arrays[rank]), {"async_op": True}
    options |= {"algorithm": algorithm_of(drawn, comm, collective), "segments": drawn.choice([None, 1, 4])}
    options |= {"op": op} if collective in FOLDS else {}
    options |= {"root": root} if collective in ROOTED else {}
    expected = expect(collective, arrays, rank, root, op)
    if collective in ("all_reduce", "all_to_all") and drawn.random() < 0.5:
        options["out"] = place(own, comm, np.zeros_like(x))
    work = getattr(comm, collective)(x, **options)
    return work, lambda got: expected is None or close(got, expected, op)


def uneven_call(drawn: random.Random, own: random.Random, comm: Any) -> Started:
    """all_gather and reduce_scatter of counts."""
    counts = [drawn.choice([0, 1, 7, drawn.randrange(5000)]) for _ in range(comm.world)]
    if drawn.random() < 0.5:
        parts = [values("int32", n, rank) for rank, n in enumerate(counts)]
        work = comm.all_gather(place(own, comm, parts[comm.rank]), counts=counts, async_op=True)
        return work, lambda got: close(got, np.concatenate(parts), "sum")
    arrays = inputs("all_reduce", "float64", comm.world, sum(counts))
    mine = np.split(expect("all_reduce", arrays, 0, 0, "sum"), np.cumsum(counts)[:-1])[comm.rank]
    work = comm.reduce_scatter(place(own, comm, arrays[comm.rank]), counts=counts, async_op=True)
    return work, lambda got: close(got, mine, "sum")


def list_call(drawn: random.Random, own: random.Random, comm: Any) -> Started:
    lists = [inputs("all_reduce", "float32", comm.world, count_of(drawn)) for _ in range(4)]
    work = comm.all_reduce([place(own, comm, arrays[comm.rank]) for arrays in lists], async_op=True)
    expected = [expect("all_reduce", arrays, 0, 0, "sum") for arrays in lists]
    return work, lambda got: all(close(a, b, "sum") for a, b in zip(got, expected, strict=True))


def coded_call(drawn: random.Random, own: random.Random, comm: Any) -> Started:
    """Of small whole numbers, of which these codecs lose nothing."""
    arrays = inputs("all_reduce", "float32", comm.world, count_of(drawn))
    options = {"algorithm": algorithm_of(drawn, comm, "all_reduce", coded=True)}
    options["codec"] = drawn.choice(["fp16", "bf16", "mpc"])
    work = comm.all_reduce(place(own, comm, arrays[comm.rank]), async_op=True, **options)
    return work, lambda got: close(got, expect("all_reduce", arrays, 0, 0, "sum"), "sum")


def message(drawn: random.Random, own: random.Random, comm: Any) -> Started:
    """Around a ring of some step."""
    step, count = drawn.randrange(comm.world), count_of(drawn)
    to, source = (comm.rank + step) % comm.world, (comm.rank - step) % comm.world
    x = place(own, comm, values("int64", count, comm.rank))
    work = comm.sendrecv(x, to, place(own, comm, np.zeros_like(x)), source, async_op=True)
    return work, lambda got: close(got, values("int64", count, source), "sum")


def mixed(comm: Any, seed: int, calls: int) -> list[str]:
    """Which calls went wrong on this rank."""
    own = random.Random(f"{seed} of {comm.rank}")
    kinds = [collective_call] * 4 + [uneven_call, list_call, coded_call, message]
    comms = [comm, comm.split(0), comm.split(comm.rank % 2), comm.split(0, -comm.rank)]
    under_way: list[tuple[str, Started]] = []
    wrong = []
    for n in range(calls):
        drawn = random.Random(f"{seed}, {n}")  # anew: ranks of smaller groups draw fewer numbers
        kind = drawn.choice(kinds)
        under_way.append((f"{kind.__name__} {n}", kind(drawn, own, drawn.choice(comms))))
        if own.random() < 0.05:
            time.sleep(own.random() * 3e-3)
        most = own.randrange(8) if n + 1 < calls else 0
        while len(under_way) > most:
            name, (work, right) = under_way.pop(own.randrange(len(under_way)))
            wrong += [] if right(work.wait()) else [name]
    for other in comms[1:]:
        other.close()
    return wrong
