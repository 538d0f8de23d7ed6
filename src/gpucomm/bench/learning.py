"""Calls of "auto" until it has learnt: what is timed then is what long runs see."""

from __future__ import annotations

from typing import Any

from gpucomm import Communicator, _core
from gpucomm.bench.peers import Call

__all__ = ["has_learnt", "learn", "learnt"]

_MOST_CALLS = 20_000
_LONG = 1 << 20  # bytes


def learnt(comm: Communicator, collective: str, nbytes: int, codec: str | None = None) -> dict[str, Any]:
    """The row of `Communicator.tuning` for calls of so many bytes that were made before, with this codec."""
    rows = [row for row in comm.tuning() if row["collective"] == collective]
    kinds = [row for row in rows if row["most_bytes"] // 2 < nbytes <= row["most_bytes"]]
    # The kind of one that the ranks had to agree on says more than that which was asked for; there is none
    # where the model alone has refused the codec.
    asked = _core.Codec(codec).kind if codec else ""
    coded = [row for row in kinds if codec and row["codec"].partition(",")[0] == asked]
    row: dict[str, Any] = (coded or [row for row in kinds if not row["codec"]])[0]
    return row


def has_learnt(row: dict[str, Any]) -> bool:
    """Whether one candidate is left: the last two have met."""
    return any(len(times) == 2 for times in row["agreements"])


def learn(comm: Communicator, collective: str, nbytes: int, call: Call, codec: str | None = None) -> int:
    """Makes calls until one candidate is left; every rank does so alike. Returns how many it took.

    As they are timed afterwards: short ones in runs, long ones alone, for what is best one behind the other
    need not be best alone.
    """
    run = 1 if nbytes >= _LONG else 32
    for calls in range(run, _MOST_CALLS, run):
        comm.barrier()
        for _ in range(run):
            call()
        row = learnt(comm, collective, nbytes, codec)
        alone = len(row["candidates"]) == 1 and not row["both_ways"]
        if alone or has_learnt(row):
            return calls
    raise AssertionError(f"{collective} of {nbytes} bytes has learnt nothing in {_MOST_CALLS} calls")
