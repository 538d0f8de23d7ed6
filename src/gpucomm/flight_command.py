"""`gpucomm flight`: reads the flight logs of a job, and names the first difference between its ranks."""

from __future__ import annotations

import argparse
import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucomm.errors import InvalidArgumentError
from gpucomm.files import read_regular
from gpucomm.flight import Row, first_difference
from gpucomm.json_file import check_writable, write_json

__all__ = ["add_arguments", "main"]

Log = dict[str, Any]  # what `flight.dump` writes, but for the version and the error
_MOST_BYTES = 256 << 20  # of a log
_MOST = {"world": 1 << 16, "sequence": 1 << 63}  # a world beyond it takes minutes to be looked through


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `gpucomm flight`."""
    parser.add_argument("files", nargs="+", type=Path, help="logs that ranks of one job wrote")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the rows and the sentence of each communicator there"
    )


def main(args: argparse.Namespace) -> int:
    """Prints what each rank last did and the first difference, of each communicator for itself."""
    check_writable(args.json)
    logs: dict[str, list[Log]] = {}
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
    write_json(args.json, found)
    return 0


def _known(logs: Sequence[Log]) -> list[Row]:
    # A later log knows more of a rank; its own log knows it best.
    known: dict[tuple[bool, int, int], Row] = {}
    for log in logs:
        for row in log["calls"]:
            key = ("peer" in row, row["rank"], row["sequence"])
            if key not in known or row["state"] == "done" or row["rank"] == log["rank"]:
                known[key] = row
    return [known[key] for key in sorted(known)]


def _print_last(rows: Sequence[Row]) -> None:
    last = {(row["rank"], "peer" in row): row for row in rows}
    for (rank, _), row in sorted(last.items(), key=lambda item: item[0]):
        print(f"rank {rank}: last {row['call']}, {row['state']}")


def _read(path: Path) -> Log:
    try:
        return _log(json.loads(read_regular(path, _MOST_BYTES)))
    except (OSError, RecursionError, ValueError) as error:
        raise InvalidArgumentError(f"{path} is no flight log: {error}") from None


def _log(read: Any) -> Log:
    log = _fields(read, world=_count, rank=_count, communicator=_text, calls=_list)
    log["calls"] = [_row(row) for row in log["calls"]]
    for ranked in (log, *log["calls"]):
        if ranked["rank"] >= log["world"]:
            raise ValueError(f"rank {ranked['rank']} is not in a world of {log['world']}")
    return log


def _row(read: Any) -> Row:
    row = _fields(read, rank=_count, sequence=_count, call=_text, state=_text)
    return row | _fields(read, op=_text, peer=_count) if "peer" in read else row


def _fields(read: Any, **checks: Callable[[str, Any], Any]) -> dict[str, Any]:
    """These fields of a JSON object, each as its check returns it."""
    if not isinstance(read, Mapping):
        raise ValueError(f"it must have objects, got {reprlib.repr(read)}")
    if missing := [name for name in checks if name not in read]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return {name: check(name, read[name]) for name, check in checks.items()}


def _count(name: str, value: Any) -> int:
    least, most = int(name == "world"), _MOST.get(name, _MOST["world"])
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, got {reprlib.repr(value)}")
    return value


def _text(name: str, value: Any) -> str:
    """Escaped where it does not print: what a terminal obeys must not come out of a file."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got {reprlib.repr(value)}")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, got {reprlib.repr(value)}")
    return value
