"""Collectives through host memory, of threads on one GPU: the core reads its environment once."""

import os
import subprocess
import sys

from on_gpu import process_environment

PROGRAM = """
import device_ranks
import gpucomm
from conftest import pairs

with gpucomm.local(3, threads=True) as world:
    for collective, algorithm in pairs():
        wrong = world.run(device_ranks.every_case, collective, algorithm, 50)
        assert wrong == [[]] * 3, (collective, algorithm)
    for codec in ("int8", "bf16", "mpc", "zfp:8"):
        how = {"algorithm": "coded_ring", "codec": codec, "segments": 2}
        same = world.run(device_ranks.as_on_the_host, "all_reduce", "float32", 3_000_000, 50, **how)
        assert all(same), codec
"""


def test_every_algorithm_through_host_memory():
    env = {**os.environ, **process_environment(GPUCOMM_DEVICE_TRANSPORT="staged")}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
