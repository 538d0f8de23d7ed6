"""What codecs cost and lose: one core, from memory, interleaved in one run, beside memcpy, PyTorch and zfpy.

python benchmarks/codec_times.py [--mib 64] [--rounds 7] [--json FILE] [--picture FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import gpucomm
from gpucomm import _core

SPECS = [
    "identity",
    "bf16",
    "fp16",
    "fp8_e4m3",
    "fp8_e5m2",
    "int8",
    "int4",
    "zfp:4",
    "zfp:8",
    "zfp:16",
    "mpc",
    "fixed:1e-05",
    "fixed:1e-07",
]
WORLD = 8  # whose sums "fixed" has room for


def timed(work: Callable[[], Any]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def coded(spec: str, x: np.ndarray, out: np.ndarray) -> tuple[dict[str, Any], dict[str, Callable[[], Any]]]:
    """A codec's row without times, and what is to be timed."""
    codec = _core.Codec(gpucomm.codecs.agreed(spec, float(np.abs(x).max()), WORLD))
    stream = np.empty(codec.max_bytes(x.size), np.uint8)
    used = stream[: codec.encode_to(x, stream)]
    max_abs, sum_sq = codec.error(x)
    row = {"codec": codec.spec, "bits": 8 * used.size / x.size, "max_error": max_abs / float(np.abs(x).max())}
    row["rms_error"] = math.sqrt(sum_sq) / float(np.linalg.norm(x))
    works = {
        "encode": lambda: codec.encode_to(x, stream),
        "decode": lambda: codec.decode(used, out),
        "decode_add": lambda: codec.decode_add(used, out),
    }
    return row, works


def peers(x: np.ndarray, out: np.ndarray) -> list[tuple[dict[str, Any], dict[str, Callable[[], Any]]]]:
    """Who else is installed: casts of PyTorch into given arrays, on one thread, and zfp."""
    found: list[tuple[dict[str, Any], dict[str, Callable[[], Any]]]] = []
    try:
        import torch

        torch.set_num_threads(1)
        given, back = torch.from_numpy(x), torch.from_numpy(out)
        for dtype in (torch.bfloat16, torch.float16):
            half = given.to(dtype)
            works = {
                "encode": lambda half=half: half.copy_(given),
                "decode": lambda half=half: back.copy_(half),
            }
            found.append(({"codec": f"{dtype} copy_", "bits": 16}, works))
    except ImportError:
        pass
    try:
        import zfpy

        stream = zfpy.compress_numpy(x, rate=8, write_header=False)
        works = {
            "encode": lambda: zfpy.compress_numpy(x, rate=8, write_header=False),
            "decode": lambda: zfpy._decompress(stream, zfpy.type_float, x.shape, out=out, rate=8),
        }
        found.append(({"codec": "zfpy, rate 8", "bits": 8}, works))
    except ImportError:
        pass
    return found


def measure(mib: int, rounds: int) -> list[dict[str, Any]]:
    """Rows: codec, bits per element, errors relative to the largest and to the norm, samples in seconds."""
    x = np.random.default_rng(0).standard_normal(mib << 18).astype(np.float32) * np.float32(1e-3)
    out = np.zeros_like(x)
    entries = [({"codec": "memcpy", "bits": 32.0}, {"encode": lambda: np.copyto(out, x)})]
    entries += [coded(spec, x, out) for spec in SPECS] + peers(x, out)
    for row, _ in entries:
        row["bytes"], row["samples_s"] = x.nbytes, {}
    for number in range(rounds + 1):
        for row, works in entries:
            for name, work in works.items():
                took = timed(work)
                if number:  # the first warms up
                    row["samples_s"].setdefault(name, []).append(took)
    return [row for row, _ in entries]


def show(rows: list[dict[str, Any]]) -> None:
    """Prints GB/s of elements and the times relative to memcpy."""
    plain = median(rows[0]["samples_s"]["encode"])
    for row in rows:
        speeds = [
            f"{name} {row['bytes'] / median(times) / 1e9:6.2f} GB/s ({plain / median(times):5.2f})"
            for name, times in row["samples_s"].items()
        ]
        print(f"{row['codec']:20} {row['bits']:6.3f} bits  {'  '.join(speeds)}")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Error against bits per element, every point with its codec's name."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "gpucomm", "svg.fonttype": "none"}):
        figure = Figure((8.5, 4.2), layout="constrained")
        axes = figure.add_subplot()
        for row in (row for row in rows if row.get("rms_error")):
            zfp = row["codec"].startswith("zfp")
            axes.plot(row["bits"], row["rms_error"], "o", color="#d55e00" if zfp else "#0072b2")
            beside = {"xytext": (-7 if zfp else 7, 0), "ha": "right" if zfp else "left", "va": "center"}
            axes.annotate(row["codec"], (row["bits"], row["rms_error"]), textcoords="offset points", **beside)
        axes.set_yscale("log")
        axes.set_xlim(0, 40)
        axes.set_xlabel("bits per element")
        axes.set_ylabel("RMS error / RMS")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title("What one coding of Gaussian float32, deviation 0.001, loses", loc="left", fontsize=11)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    rows = measure(given.mib, given.rounds)
    show(rows)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    if given.picture:
        draw(rows, given.picture)


if __name__ == "__main__":
    main()
