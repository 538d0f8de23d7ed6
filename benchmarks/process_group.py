"""torch.distributed's all_reduce over gpucomm beside Gloo, two groups of the same processes, interleaved.

python benchmarks/process_group.py [--ranks 2] [--rounds 30] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import gpucomm

CALLS = {8: 200, 64 << 10: 50, 4 << 20: 4}  # bytes of a message -> calls in a turn


def compare(comm: gpucomm.Communicator, folder: str, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds per call by size and backend, taken in turns; the slowest rank's."""
    import os
    import time
    from datetime import timedelta

    import numpy as np
    import torch
    import torch.distributed as dist

    import gpucomm.optim.process_group  # noqa: F401

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", comm.world)
    patience = timedelta(seconds=60)
    dist.init_process_group("gpucomm", store=store, rank=comm.rank, world_size=comm.world, timeout=patience)
    groups = {"gpucomm": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    times: dict[str, dict[str, list[float]]] = {}
    for nbytes, calls in CALLS.items():
        x = torch.ones(nbytes // 4)
        taken = times[str(nbytes)] = {name: [] for name in groups}
        for turn in range(rounds + 5):
            for name, group in groups.items():
                x.fill_(1)
                comm.barrier()
                begin = time.perf_counter()
                for _ in range(calls):
                    dist.all_reduce(x, dist.ReduceOp.MAX, group=group)
                slowest = comm.all_reduce(np.array([time.perf_counter() - begin]), op="max")[0] / calls
                if turn >= 5:  # "auto" has learnt by then
                    taken[name].append(float(slowest))
    dist.destroy_process_group()
    return times


def main() -> None:
    """Prints the medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, gpucomm.local(args.ranks) as world:
        times = world.run(compare, folder, args.rounds)[0]
    print(f"all_reduce on {args.ranks} ranks, median of {args.rounds} turns, slowest rank:")
    for nbytes, taken in times.items():
        ours, gloo = (statistics.median(taken[name]) * 1e6 for name in ("gpucomm", "gloo"))
        print(f"{nbytes} bytes: gpucomm {ours:.1f} us, gloo {gloo:.1f} us, ratio {gloo / ours:.1f}")
    if args.json:
        args.json.write_text(json.dumps({"ranks": args.ranks, "samples_s": times}, indent=1))


if __name__ == "__main__":
    main()
