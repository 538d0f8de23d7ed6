"""A training step of the demo's network: DistributedOptimizer beside DDP over Gloo, interleaved in one run.

python benchmarks/training_step.py [--ranks 2] [--merge 25MB] [--rounds 40] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import gpucomm

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))


def compare(comm: gpucomm.Communicator, folder: str, merge: str, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of both, taken in turns of ten steps; the slowest rank's."""
    import time
    from datetime import timedelta

    import numpy as np
    import torch
    import torch.distributed as dist
    from digits.model import make_model

    from gpucomm.optim import DistributedOptimizer

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(f"{folder}/store", comm.world),
        rank=comm.rank,
        world_size=comm.world,
        timeout=timedelta(seconds=60),
    )
    batch, targets = torch.randn(64, 1, 8, 8), torch.randint(0, 10, (64,))

    def trainer(wrap_model, wrap_optimizer):  # type: ignore[no-untyped-def]
        model = make_model(0)
        optimizer = wrap_optimizer(torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), model)
        model = wrap_model(model)

        def step() -> None:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), targets).backward()
            optimizer.step()

        return step

    steps = {
        "ours": trainer(lambda m: m, lambda o, m: DistributedOptimizer(o, m, comm, merge=merge)),
        "ddp": trainer(torch.nn.parallel.DistributedDataParallel, lambda o, m: o),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 2):
        for name, step in steps.items():
            comm.barrier()
            begin = time.perf_counter()
            for _ in range(10):
                step()
            slowest = comm.all_reduce(np.array([time.perf_counter() - begin]), op="max")[0] / 10
            if turn >= 2:
                times[name].append(float(slowest))
    dist.destroy_process_group()
    return times


def main() -> None:
    """Prints the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--merge", default="25MB")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, gpucomm.local(args.ranks) as world:
        times = world.run(compare, folder, args.merge, args.rounds)[0]
    ours, ddp = (statistics.median(times[name]) for name in ("ours", "ddp"))
    print(f"{args.ranks} ranks, merge={args.merge}, median of {args.rounds} turns of 10 steps, slowest rank:")
    print(
        f"DistributedOptimizer {ours * 1e3:.3f} ms, DDP with Gloo {ddp * 1e3:.3f} ms, ratio {ours / ddp:.3f}"
    )
    if args.json:
        args.json.write_text(
            json.dumps({"ranks": args.ranks, "merge": args.merge, "samples_s": times}, indent=1)
        )


if __name__ == "__main__":
    main()
