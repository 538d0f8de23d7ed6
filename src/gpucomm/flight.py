"""Flight logs: what every rank called last, written when a call fails, and where the ranks first differ."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError

__all__ = ["dump", "first_difference"]

Row = dict[str, Any]  # rank, sequence, call, state, maybe op and peer: as Communicator.flight_log gives them


def dump(rows: Sequence[Row], rank: int, error: str) -> Path:
    """Writes a rank's log into the folder that GPUCOMM_FLIGHT_DIR names.

    Args:
        rows: what `Communicator.flight_log` gave.
        rank: who writes.
        error: the text of the failure.

    Returns:
        The file's path: gpucomm-flight-PID-rankN.json.
    """
    path = Path(os.environ["GPUCOMM_FLIGHT_DIR"]) / f"gpucomm-flight-{os.getpid()}-rank{rank}.json"
    log = {"rank": rank, "version": _core.version, "error": error, "calls": list(rows)}
    path.write_text(json.dumps(log, indent=1))
    return path


def first_difference(rows: Sequence[Row]) -> str:
    """Compares the ranks' calls in order.

    Args:
        rows: of one job, of one log or several together.

    Returns:
        A sentence that names the first call that the ranks do not share: a different one, one that a rank
        never came to, or one that a rank has not finished; or that there is none.
    """
    rows = [row for row in rows if "peer" not in row]  # sends and receives are not the same on all ranks
    calls: dict[int, dict[int, Row]] = {}
    for row in rows:
        calls.setdefault(row["sequence"], {})[row["rank"]] = row
    ranks = sorted({row["rank"] for row in rows})
    # A log remembers a bounded number of calls: what only some still remember says nothing.
    start = max((min(s for s, by in calls.items() if rank in by) for rank in ranks), default=0)
    for sequence in sorted(s for s in calls if s >= start):
        by_rank = calls[sequence]
        texts = {rank: row["call"] for rank, row in by_rank.items()}
        if len(set(texts.values())) > 1:
            return "the ranks differ in call " + "; ".join(f"rank {r}: {t}" for r, t in sorted(texts.items()))
        late = [r for r in ranks if r not in by_rank]
        if late:
            return f"{next(iter(texts.values()))}: ranks {sorted(texts)} came, ranks {late} did not"
        busy = [r for r, row in sorted(by_rank.items()) if row["state"] != "done"]
        if busy:
            return f"{next(iter(texts.values()))}: all ranks came, ranks {busy} have not finished it"
    return "no difference: all ranks made and finished the same calls"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `gpucomm flight`."""
    parser.add_argument("files", nargs="+", type=Path, help="logs that ranks of one job wrote")
    parser.add_argument("--json", type=Path, help="write the rows of all files and the sentence there")


def main(args: argparse.Namespace) -> int:
    """Prints what each rank last did and the first difference."""
    logs = [_read(path) for path in args.files]
    # A later log knows more of a rank; its own log knows it best.
    known: dict[tuple[bool, int, int], Row] = {}
    for log in logs:
        for row in log["calls"]:
            key = ("peer" in row, row["rank"], row["sequence"])
            if key not in known or row["state"] == "done" or row["rank"] == log["rank"]:
                known[key] = row
    rows = [known[key] for key in sorted(known)]
    for rank in sorted({row["rank"] for row in rows}):
        for messages in (False, True):
            own = [row for row in rows if row["rank"] == rank and ("peer" in row) == messages]
            if own:
                print(f"rank {rank}: last {own[-1]['call']}, {own[-1]['state']}")
    sentence = first_difference(rows)
    print(sentence)
    if args.json:
        args.json.write_text(json.dumps({"calls": rows, "first_difference": sentence}, indent=1))
    return 0


def _read(path: Path) -> dict[str, Any]:
    try:
        log = json.loads(path.read_text())
        if not {"rank", "calls"} <= set(log):
            raise ValueError("it lacks rank or calls")
    except (OSError, ValueError, TypeError) as error:
        raise InvalidArgumentError(f"{path} is no flight log: {error}") from None
    return dict(log)
