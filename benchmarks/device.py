"""What a device computes and how fast its ranks exchange, each against its floor: a copy of the same traffic.

    python benchmarks/device.py --json benchmarks/results/h200.json      # the first GPU
    python benchmarks/device.py --device host --mib 1 --repeats 3        # no GPU: only shows that it works

Each figure is a median of repetitions in turns, with buffers rotated so that no cache holds them. `of_floor`
is the time that a copy of the same traffic (bytes read plus bytes written) takes here over the kernel's.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from device_kernels import kernels
from device_places import Cuda, Host
from device_processes import processes
from device_threads import collectives, enqueuings
from device_turns import INPUTS, ROTATED, Turns


def measured(place: Any, mib: int, repeats: int, *, processes_of: str) -> dict[str, Any]:
    """Prints the tables of one size; what the file has of it. `processes_of`: the kind of place, or none."""
    buffers = 2 * ROTATED * (INPUTS + 2)  # and what the calls hold
    if place.free_bytes() < buffers * mib << 20:
        print(f"{place.name}: no room for {buffers} buffers of {mib} MiB")
        return {"mib": mib, "rows": []}
    turns = Turns(place, mib << 20, repeats)
    print(f"{place.name}: a copy of {mib} MiB moves {turns.ceiling * 1e-9:.0f} GB/s (read plus written)")
    rows = []
    for row in chain(kernels(turns), collectives(turns), processes(turns, processes_of)):
        rows.append(asdict(row))
        print(f"{row.name:<44} {row.time_us:10.1f} us {row.GBps:8.1f} GB/s {row.of_floor:6.2f}")
    return {"mib": mib, "copy_GBps": turns.ceiling * 1e-9, "rows": rows}


def host_times(place: Any, repeats: int) -> list[dict[str, Any]]:
    """Prints what calls take of the host; what the file has of it."""
    rows = []
    for row in enqueuings(place, repeats):
        rows.append(asdict(row))
        print(
            f"{row.name:<44} {row.host_us:10.1f} us of the host {row.steps:4} steps of {row.step_us:.1f} us"
        )
    return rows


def main() -> None:
    """Measure, print tables, write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda")
    sizes = {"type": int, "nargs": "+", "default": [256, 1024], "metavar": "N"}
    parser.add_argument("--mib", **sizes, help="MiB of a buffer (default: 256 1024)")
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="repetitions (default: 15)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write versions and rows there")
    args = parser.parse_args()
    place = Cuda() if args.device == "cuda" else Host()
    about: dict[str, Any] = {
        "versions": place.versions(),
        "host": host_times(place, args.repeats),
        "sizes": [],
    }
    for turn, mib in enumerate(args.mib):
        processes_of = "" if turn else args.device  # starting them takes longer than all calls of a size
        about["sizes"].append(measured(place, mib, args.repeats, processes_of=processes_of))
        if args.json:  # so far, for what may be ended before its end
            args.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
