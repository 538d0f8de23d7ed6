"""Collectives through host memory, of threads on one GPU: the core reads its environment once."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import functools
import device_ranks
import gpucomm
from conftest import pairs
from {module} import {kit}

device_ranks.own = functools.cache({kit})
with gpucomm.local(3, threads=True) as world:
    for collective, algorithm in pairs():
        wrong = world.run(device_ranks.every_case, collective, algorithm, 50)
        assert wrong == [[]] * 3, (collective, algorithm)
    for codec in ("int8", "bf16", "mpc", "zfp:8"):
        how = {{"algorithm": "coded_ring", "codec": codec, "segments": 2}}
        same = world.run(device_ranks.as_on_the_host, "all_reduce", "float32", 3_000_000, 50, **how)
        assert all(same), codec
"""


def test_every_algorithm_through_host_memory(module="on_gpu", kit="CudaKit"):
    path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "GPUCOMM_DEVICE_TRANSPORT": "staged"}
    program = PROGRAM.format(module=module, kit=kit)
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
