"""Collectives through host memory, of threads on the device that the environment names; of so many elements.

A process of its own: the core reads its environment once.
"""

import sys

import device_ranks
from conftest import pairs

import gpucomm

with gpucomm.local(3, threads=True) as world:
    for collective, algorithm in pairs():
        wrong = world.run(device_ranks.every_case, collective, algorithm, 50)
        assert wrong == [[]] * 3, (collective, algorithm)
    for codec in ("int8", "bf16", "mpc", "zfp:8"):
        how = {"algorithm": "coded_ring", "codec": codec, "segments": 2}
        same = world.run(device_ranks.as_on_the_host, "all_reduce", "float32", int(sys.argv[1]), 50, **how)
        assert all(same), codec
