"""Collectives through host memory, of threads on the device that the environment names.

In a process of its own: the core reads its environment once.
"""

from __future__ import annotations

import os
import subprocess
import sys

import device_ranks
from conftest import pairs

import gpucomm


def check(environment: dict[str, str], count: int) -> None:
    """Runs this file; the coded calls are of so many elements."""
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, __file__, str(count)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    with gpucomm.local(3, threads=True) as world:
        for collective, algorithm in pairs():
            wrong = world.run(device_ranks.every_case, collective, algorithm, 50)
            assert wrong == [[]] * 3, (collective, algorithm)
        for codec in ("int8", "bf16", "mpc", "zfp:8"):
            how = {"algorithm": "coded_ring", "codec": codec, "segments": 2}
            same = world.run(
                device_ranks.as_on_the_host, "all_reduce", "float32", int(sys.argv[1]), 50, **how
            )
            assert all(same), codec
