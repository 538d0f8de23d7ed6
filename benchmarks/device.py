"""What a device computes and how fast its ranks exchange, each against its floor: a copy of the same traffic.

    python benchmarks/device.py --json benchmarks/results                # the first GPU, into h200.json there
    python benchmarks/device.py --device host --mib 1 --repeats 3        # no GPU: only shows that it works

Each figure is a median of repetitions in turns, with buffers rotated so that no cache holds them. `of_floor`
is the time that a copy of the same traffic (bytes read plus bytes written) takes here over the kernel's.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from device_goals import reached
from device_kernels import kernels
from device_places import Cuda, Host
from device_processes import processes
from device_threads import collectives, enqueuings
from device_turns import INPUTS, ROTATED, Section, Turns


class Results:
    """What the file has: written anew with each row, for what may be ended before its end."""

    def __init__(self, file: Path | None, versions: dict[str, str]) -> None:
        self._file = file
        self.told: dict[str, Any] = {"versions": versions, "sizes": [], "host": [], "errors": []}

    def add(self, rows: list[dict[str, Any]], row: Any) -> None:
        """Puts a row into those of its table."""
        rows.append(asdict(row))
        self.write()

    def write(self) -> None:
        """All at once: the file is whole at any time."""
        if self._file:
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(self.told, indent=1) + "\n")
            new.replace(self._file)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """What fails in it is printed and told; the next one goes on."""
        try:
            yield
        except Exception:
            error = traceback.format_exc()
            print(f"{name} failed:\n{error}", file=sys.stderr)
            self.told["errors"].append({"section": name, "error": error})
            self.write()


def measure(results: Results, place: Any, mib: int, repeats: int) -> None:
    """Prints the table of one size."""
    size: dict[str, Any] = {"mib": mib, "rows": []}
    results.told["sizes"].append(size)
    buffers = 2 * ROTATED * (INPUTS + 2)  # and what the calls hold
    if place.free_bytes() < buffers * mib << 20:
        print(f"{place.name}: no room for {buffers} buffers of {mib} MiB")
        return
    turns = Turns(place, mib << 20, repeats)
    size["copy_GBps"] = turns.ceiling * 1e-9
    print(f"{place.name}: a copy of {mib} MiB moves {size['copy_GBps']:.0f} GB/s (read plus written)")
    add_sections(results, size, chain(kernels(turns), collectives(turns)))


def add_sections(results: Results, size: dict[str, Any], sections: Iterable[Section]) -> None:
    """Prints the rows of a size."""
    for name, rows in sections:
        with results.section(f"{name}, {size['mib']} MiB"):
            for row in rows:
                results.add(size["rows"], row)
                print(f"{row.name:<44} {row.time_us:10.1f} us {row.GBps:8.1f} GB/s {row.of_floor:6.2f}")


def measure_host(results: Results, place: Any, repeats: int) -> None:
    """Prints what calls take of the host."""
    for name, rows in enqueuings(place, repeats):
        with results.section(f"{name}, what it takes of the host"):
            for row in rows:
                results.add(results.told["host"], row)
                print(
                    f"{row.name:<44} {row.call_us:10.1f} us a call, {row.enqueuing_us:.1f} us to enqueue "
                    f"{row.steps} steps, {row.step_us:.1f} us each"
                )


def measure_processes(results: Results, place: Any, kind: str, repeats: int) -> None:
    """Prints what ranks that are processes take for the first size: starting them takes longer than that."""
    size = results.told["sizes"][0]
    with results.section("memory given back to them"):
        place.free_bytes()  # torch keeps what arrays had
    if "copy_GBps" in size:
        ceiling = size["copy_GBps"] * 1e9
        add_sections(results, size, processes(kind, size["mib"] << 18, repeats, ceiling))


def print_goals(results: Results) -> None:
    """Prints how near each goal came, by the row that is furthest from it."""
    for one in reached(results.told):
        asked = f"{one.goal.relation} {one.goal.goal:.2f}"
        print(f"{one.goal.what:<52} {asked:>8} {one.ours:8.2f} {'yes' if one.holds else 'NO':<4} {one.row}")


def file_of(path: Path | None, gpu: str) -> Path | None:
    """In a folder h200.json for an NVIDIA H200."""
    if not path or not path.is_dir():
        return path
    return path / f"{'-'.join(gpu.lower().removeprefix('nvidia ').split())}.json"


def main() -> None:
    """Measure, print tables, write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda")
    sizes = {"type": int, "nargs": "+", "default": [256, 1024], "metavar": "N"}
    parser.add_argument("--mib", **sizes, help="MiB of a buffer (default: 256 1024)")
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="repetitions (default: 15)")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="PATH",
        help="write versions and rows there: a file, or a folder for one of the GPU's name",
    )
    args = parser.parse_args()
    place = Cuda() if args.device == "cuda" else Host()
    results = Results(file_of(args.json, place.name), place.versions())
    for mib in args.mib:
        with results.section(f"{mib} MiB"):
            measure(results, place, mib, args.repeats)
    with results.section("what calls take of the host"):
        measure_host(results, place, args.repeats)
    with results.section("processes"):
        measure_processes(results, place, args.device, args.repeats)
    results.write()
    print_goals(results)
    if failed := [error["section"] for error in results.told["errors"]]:
        raise SystemExit("failed: " + "; ".join(failed))


if __name__ == "__main__":
    main()
