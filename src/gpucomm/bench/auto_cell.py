"""One cell of `gpucomm bench-auto` as every rank runs it: "auto", once it has learnt, and fixed choices."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpucomm import Communicator, _core
from gpucomm.bench.learning import learn, learnt
from gpucomm.bench.metrics import elements_of
from gpucomm.bench.ours import Gpucomm
from gpucomm.bench.peers import Call, aligned_zeros
from gpucomm.kinds import ROOTED_BY_RANK

__all__ = ["OFFERED", "Choice", "fixed", "measure"]

# A collective with one algorithm (all_to_all) leaves nothing to choose.
OFFERED = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter")
_MOST_CALLS = 20_000
_HOPELESS = 1.5  # a fixed choice that takes so many times the fastest's time is not measured in earnest
_LONG_S = 0.01  # that a moment in which the machine is busy does not triple
_FEW = 6  # nor are more than so many

Choice = tuple[str, int | None]


def measure(
    comm: Communicator, collective: str, nbytes: int, repeats: int, least_s: float, codec: str | None = None
) -> dict[str, Any]:
    """Times "auto" and the best fixed choices, in turns.

    Fixed choices are all algorithms with 1, 4, 16, 64, ... segments, at least as long as those of "auto";
    each is tried, the slow ones are left out, and the fastest take turns with "auto".

    Args:
        comm: every rank calls this alike.
        collective: one of OFFERED.
        nbytes: of the whole message, float32.
        repeats: how often each is timed.
        least_s: seconds that a repetition lasts at least, in as many calls as that takes.
        codec: that "auto" may take or leave; the fixed choices are without.

    Returns:
        taken (algorithm, segments), auto_s and fixed (rows of algorithm, segments, times): seconds a call of
        each repetition, the slowest rank's; and learnt_in, the calls until one candidate was left.
    """
    count = elements_of(collective, nbytes, 4, comm.world)
    call_of = _calls(comm, collective, count, codec)
    gc.disable()
    try:
        auto = call_of(("auto", None))
        learnt_in = learn(comm, collective, count * 4, auto, codec)
        row = learnt(comm, collective, count * 4, codec)
        choices = fixed(collective, comm.world, count * 4, _core.least_segment(comm.links))
        tried: dict[Choice, float] = {}
        for choice in choices:
            tried[choice] = _spent(comm, call_of(choice), min(tried.values(), default=math.inf))
        least = min(tried.values())
        kept = sorted((c for c in tried if tried[c] <= _HOPELESS * least), key=lambda c: tried[c])[:_FEW]
        calls = min(_MOST_CALLS, math.ceil(least_s / least))
        times: dict[Choice, list[float]] = {choice: [] for choice in [("auto", None), *kept]}
        for _ in range(repeats):
            for choice in times:
                times[choice].append(_time(comm, call_of(choice), calls))
    finally:
        gc.enable()
    return {
        "taken": (row["algorithm"], row["segments"]),
        "learnt_in": learnt_in,
        "auto_s": times.pop(("auto", None)),
        "fixed": [{"algorithm": a, "segments": m, "times_s": t} for (a, m), t in times.items()],
    }


def _calls(comm: Communicator, collective: str, count: int, codec: str | None) -> Callable[[Choice], Call]:
    whole = aligned_zeros(count, "float32")
    share = count // comm.world
    part = whole[comm.rank * share : (comm.rank + 1) * share]
    if collective in ROOTED_BY_RANK:
        part = aligned_zeros(share, "float32")
    library = Gpucomm(comm)
    op = "sum"
    if codec is not None:  # what a codec does with zeros says little; means stay as large as they are
        whole[:] = np.random.default_rng(comm.rank).standard_normal(count)
        op = "mean"

    def bind(choice: Choice) -> Call:
        spec = codec if choice[0] == "auto" else None
        return library.bind(collective, choice[0], whole, part, choice[1], spec, op)

    return bind


def fixed(collective: str, world: int, nbytes: int, least: int) -> Iterator[Choice]:
    """All dense algorithms for one node, with 1, 4, 16, 64, ... segments of at least so many bytes.

    None that is as another one among so many ranks.
    """
    for name, about in _core.algorithms().items():
        offered = collective in about["collectives"] and world >= about["from_world"]
        if not offered or about["across_nodes"] or about["coded"]:
            continue
        segments = 1
        while segments == 1 or (about["segmented"] and segments <= 256 and nbytes // segments >= least):
            yield name, segments
            segments *= 4


def _spent(comm: Communicator, call: Call, least: float) -> float:
    """Of three calls the shortest; of a long one that is far behind what has been seen, the first."""
    first = _time(comm, call, 1)
    if first > _LONG_S and first > 2 * _HOPELESS * least:
        return first
    return min(first, _time(comm, call, 1), _time(comm, call, 1))


def _time(comm: Communicator, call: Call, calls: int) -> float:
    """Seconds a call, the slowest rank's."""
    comm.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    spent = np.array([(time.perf_counter() - start) / calls])
    comm.all_reduce(spent, op="max", algorithm="one_shot", segments=1)
    return float(spent[0])
