"""Flight logs: what every rank called last, written when a call fails, and where the ranks first differ."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError

__all__ = ["dump", "first_difference"]

Row = dict[str, Any]  # rank, sequence, call, state, maybe op and peer: as Communicator.flight_log gives them


def dump(rows: Sequence[Row], rank: int, world: int, identity: int, error: str) -> Path | None:
    """Writes a rank's log into the folder that GPUCOMM_FLIGHT_DIR names.

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
        path.write_text(json.dumps(log | {"calls": list(rows)}, indent=1))
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
    for row in rows:
        calls.setdefault(row["sequence"], {})[row["rank"]] = row
    # A log remembers a bounded number of calls: what only some still remember says nothing.
    known = {row["rank"] for row in rows}
    start = max((min(s for s, by in calls.items() if rank in by) for rank in known), default=0)
    for sequence in sorted(s for s in calls if s >= start):
        by_rank = calls[sequence]
        texts = {rank: row["call"] for rank, row in by_rank.items()}
        if len(set(texts.values())) > 1:
            return "the ranks differ in call " + "; ".join(f"rank {r}: {t}" for r, t in sorted(texts.items()))
        late = [r for r in range(world) if r not in by_rank]
        if late:
            return f"{next(iter(texts.values()))}: ranks {sorted(texts)} came, ranks {late} did not"
        busy = [r for r, row in sorted(by_rank.items()) if row["state"] != "done"]
        if busy:
            return f"{next(iter(texts.values()))}: all ranks came, ranks {busy} have not finished it"
    return "no difference: all ranks made and finished the same calls"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `gpucomm flight`."""
    parser.add_argument("files", nargs="+", type=Path, help="logs that ranks of one job wrote")
    parser.add_argument(
        "--json", type=Path, help="write the rows and the sentence of each communicator there"
    )


def main(args: argparse.Namespace) -> int:
    """Prints what each rank last did and the first difference, of each communicator for itself."""
    from gpucomm.bench.command import check_writable  # not where a failing rank writes its log

    check_writable(args.json)
    logs: dict[str, list[dict[str, Any]]] = {}
    for path in args.files:
        log = _read(path)
        logs.setdefault(log["communicator"], []).append(log)
    found = []
    for name in sorted(logs, key=lambda name: (-logs[name][0]["world"], name)):
        if len(logs) > 1:
            print(f"communicator {name}, {logs[name][0]['world']} ranks:")
        rows = _known(logs[name])
        _print_last(rows)
        sentence = first_difference(rows, logs[name][0]["world"])
        print(sentence)
        found.append({"communicator": name, "calls": rows, "first_difference": sentence})
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    return 0


def _known(logs: Sequence[dict[str, Any]]) -> list[Row]:
    # A later log knows more of a rank; its own log knows it best.
    known: dict[tuple[bool, int, int], Row] = {}
    for log in logs:
        for row in log["calls"]:
            key = ("peer" in row, row["rank"], row["sequence"])
            if key not in known or row["state"] == "done" or row["rank"] == log["rank"]:
                known[key] = row
    return [known[key] for key in sorted(known)]


def _print_last(rows: Sequence[Row]) -> None:
    for rank in sorted({row["rank"] for row in rows}):
        for messages in (False, True):
            own = [row for row in rows if row["rank"] == rank and ("peer" in row) == messages]
            if own:
                print(f"rank {rank}: last {own[-1]['call']}, {own[-1]['state']}")


def _read(path: Path) -> dict[str, Any]:
    try:
        log = json.loads(path.read_text())
        if missing := {"rank", "world", "communicator", "calls"} - set(log):
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    except (OSError, ValueError, TypeError) as error:
        raise InvalidArgumentError(f"{path} is no flight log: {error}") from None
    return dict(log)
