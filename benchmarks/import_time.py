"""What importing gpucomm costs beyond NumPy: fresh interpreters, interleaved, medians."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time


def seconds(module: str) -> float:
    """How long a fresh interpreter takes that imports one module."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - begin


def main() -> None:
    """Prints the medians and their difference."""
    pairs = [(seconds("numpy"), seconds("gpucomm")) for _ in range(15)]
    numpy_s, gpucomm_s = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    print(f"import numpy {numpy_s:.3f} s, import gpucomm {gpucomm_s:.3f} s: {gpucomm_s - numpy_s:.3f} s more")


if __name__ == "__main__":
    main()
