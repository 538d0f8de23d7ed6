"""Flight logs: what every rank called last, written when a call fails, and where the ranks first differ."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpucomm import _core
from gpucomm.files import replace

__all__ = ["dump", "first_difference"]

Row = dict[str, Any]  # rank, sequence, call, state, maybe op and peer: as Communicator.flight_log gives them


def dump(rows: Sequence[Row], rank: int, world: int, identity: int, error: str) -> Path | None:
    """Writes a rank's log into the folder that GPUCOMM_FLIGHT_DIR names, and makes that.

    Args:
        rows: what `Communicator.flight_log` gave.
        rank: who writes, in its communicator.
        world: the ranks of that.
        identity: what only the ranks of the communicator share; 0: they were given nothing.
        error: the text of the failure.

    Returns:
        The file's path: gpucomm-flight-PID-rankN-COMMUNICATOR.json; None after a warning, as it cannot be
        written.
    """
    name = f"{identity:x}" if identity else f"of{world}"
    path = Path(os.environ["GPUCOMM_FLIGHT_DIR"]) / f"gpucomm-flight-{os.getpid()}-rank{rank}-{name}.json"
    log = {"rank": rank, "world": world, "communicator": name, "version": _core.version, "error": error}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, json.dumps(log | {"calls": list(rows)}, indent=1))
    except OSError as fault:
        warnings.warn(f"no flight log of rank {rank} of {world}: {fault}", RuntimeWarning, stacklevel=2)
        return None
    return path


def first_difference(rows: Sequence[Row], world: int) -> str:
    """Compares the ranks' calls in order.

    Args:
        rows: of one communicator, of one log or several together.
        world: its ranks; one without rows has made no call.

    Returns:
        A sentence that names the first call that the ranks do not share: a different one, one that a rank
        never came to, or one that a rank has not finished; or that there is none.
    """
    rows = [row for row in rows if "peer" not in row]  # sends and receives are not the same on all ranks
    calls: dict[int, dict[int, Row]] = {}
    first: dict[int, int] = {}
    for row in sorted(rows, key=lambda row: row["sequence"]):
        calls.setdefault(row["sequence"], {})[row["rank"]] = row
        first.setdefault(row["rank"], row["sequence"])
    # A log remembers a bounded number of calls: what only some still remember says nothing. Of ranks on other
    # nodes it has what they were asked for, so they may have come to a call that all others have finished.
    start = max(first.values(), default=0)
    unheard = ""
    for sequence in sorted(s for s in calls if s >= start):
        by_rank = calls[sequence]
        texts = {rank: row["call"] for rank, row in by_rank.items()}
        if len(set(texts.values())) > 1:
            each = "; ".join(f"rank {r}: {t}" for r, t in sorted(texts.items()))
            return f"the ranks differ in call {sequence}: {each}"
        call = next(iter(texts.values()))
        late = [r for r in range(world) if r not in by_rank]
        busy = [r for r, row in sorted(by_rank.items()) if row["state"] != "done"]
        if late:
            sentence = f"{call}: ranks {sorted(texts)} came, ranks {late} did not"
            if busy:
                return sentence
            unheard = unheard or sentence
        elif busy:
            return f"{call}: all ranks came, ranks {busy} have not finished it"
    return unheard or "no difference: all ranks made and finished the same calls"
