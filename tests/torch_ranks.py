"""Ranks as torchrun starts them, at the cost of one import of torch: torch_ranks.py RANKS PROGRAM ARGUMENT...

Each rank is a fork of this process, which has torch, and the modules that TORCH_RANKS_LOAD names, and uses
nothing of them. The exit code is that of the first rank that failed; the others are ended then.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import signal
import socket
import sys
import uuid

import torch.distributed  # noqa: F401, the ranks', which takes each of them seconds


def free_port() -> str:
    """A port that nobody listens on."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return str(some.getsockname()[1])


def run_rank(rank: int, program: str, arguments: list[str]) -> None:
    """Be the rank; as `python PROGRAM ARGUMENT...` otherwise."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    sys.argv = [program, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    runpy.run_path(program, run_name="__main__")


def wait_for_all(ranks: set[int]) -> int:
    """End all where one fails; the exit code."""
    failed = 0
    while ranks:
        ended, status = os.wait()
        ranks.discard(ended)
        code = os.waitstatus_to_exitcode(status)
        if code and not failed:
            failed = code if code > 0 else 128 - code
            for rank in ranks:
                os.kill(rank, signal.SIGTERM)
    return failed


def main() -> None:
    """Fork the ranks and wait for them."""
    world, program, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
    for name in os.environ.get("TORCH_RANKS_LOAD", "").split():
        importlib.import_module(name)
    os.environ.update(WORLD_SIZE=world, LOCAL_WORLD_SIZE=world, GROUP_RANK="0", GROUP_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), TORCHELASTIC_RUN_ID=uuid.uuid4().hex)
    gc.freeze()  # else each rank looks at all of torch's objects at its end, for half a second
    ranks: set[int] = set()
    for rank in range(int(world)):
        child = os.fork()
        if not child:
            return run_rank(rank, program, arguments)
        ranks.add(child)
    signal.signal(signal.SIGTERM, lambda *_: [os.kill(rank, signal.SIGTERM) for rank in ranks])
    sys.exit(wait_for_all(ranks))


if __name__ == "__main__":
    main()
