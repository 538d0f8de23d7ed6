"""Any collective on arrays of devices has the bits of the same call in host memory, however it is cut.

The host device throws where pieces of work that it is given as one touch the same memory, and starts each
late at random: an order that is lost between the steps of ranks shows up as other bits, or as its error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from conftest import ROOTED, pairs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from on_device import Racing, stream_of
from on_emulated import SANITIZER
from ranks import run_ranks

from gpucomm import Communicator

CODECS = ["int8", "fp8_e4m3", "bf16", "mpc", "zfp:8", "fixed:1e-2"]
KINDS = [(*pair, None) for pair in pairs()] + [
    (*pair, codec) for pair in pairs(coded=True) for codec in CODECS
]
BLOCKS = st.sampled_from([0, 1, 100, 128, 1000, 3000])  # elements


@dataclass
class Call:
    collective: str
    world: int
    root: int
    sizes: list[int]  # of x, by rank
    options: dict[str, Any]
    of_rank: list[dict[str, Any]] = field(default_factory=list)  # more options

    def run(self, comm: Communicator, x: Any, **options: Any) -> Any:
        places = (x, self.root) if self.collective in ROOTED else (x,)
        own = self.of_rank[comm.rank] if self.of_rank else {}
        return getattr(comm, self.collective)(*places, **self.options, **own, **options)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    collective, algorithm, codec = draw(st.sampled_from(KINDS))
    world = draw(st.integers(1, 8))
    root = draw(st.integers(0, world - 1)) if collective in ROOTED else 0
    options = {"algorithm": algorithm, "segments": draw(st.integers(1, 9))}
    if codec:
        options["codec"] = codec
    if "reduce" in collective:
        options["op"] = draw(st.sampled_from(["sum", "mean"]))
    counts = draw(st.lists(BLOCKS, min_size=world, max_size=world))
    if collective in ("all_gather", "gather"):
        return Call(collective, world, root, counts, options | {"counts": counts})
    if collective == "reduce_scatter":
        return Call(collective, world, root, [sum(counts)] * world, options | {"counts": counts})
    if collective != "all_to_all":
        count = counts[0] * world if collective == "scatter" else counts[0]
        return Call(collective, world, root, [count] * world, options)
    rows = [counts] + [draw(st.lists(BLOCKS, min_size=world, max_size=world)) for _ in range(world - 1)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    each = [{"counts": row, "out_counts": column} for row, column in zip(rows, columns, strict=True)]
    return Call(collective, world, root, [sum(row) for row in rows], options, each)


def on_device(comm: Communicator, call: Call, kit: Any, x: np.ndarray, host: np.ndarray | None) -> bool:
    """Whether the device gives what the host gave; None: it gave this rank nothing."""
    with stream_of(kit) as stream:
        racing = Racing(kit, stream)
        array, out = racing.array(x), {}
        if host is not None and call.collective not in ("all_reduce", "reduce", "broadcast"):
            out["out"] = racing.empty(host.size, x.dtype)
        result = call.run(comm, array, stream=stream, **out)
        reading = racing.read(result) if host is not None and host.size else None
        racing.finish()
        return reading is None or np.array_equal(kit.host(reading), host)


@settings(
    max_examples=25 if SANITIZER else 200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(call=calls(), one_device=st.booleans(), late_us=st.sampled_from([0, 50]))
def test_any_call_has_the_bits_of_host_memory(
    make_kit: Any, call: Call, one_device: bool, late_us: int
) -> None:
    kits = [make_kit(late_us, index) for index in range(1 if one_device else call.world)]

    def body(comm: Communicator) -> bool:
        x = np.random.default_rng(comm.rank).standard_normal(call.sizes[comm.rank]).astype(np.float32)
        host = call.run(comm, x.copy())
        if comm.rank != call.root and call.collective in ("reduce", "gather"):
            host = None
        return on_device(comm, call, kits[comm.rank % len(kits)], x, host)

    assert run_ranks(call.world, body) == [True] * call.world
