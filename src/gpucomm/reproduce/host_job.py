"""What a rank of a job over several hosts does: its job, and rank 0 writes what all ranks found."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import gpucomm
from gpucomm import probe

__all__ = ["main"]


def main(text: str) -> None:
    """Do the job.

    Args:
        text: JSON with job (a module and the name of a function in it), args, and out, the file to write.
    """
    told = json.loads(text)
    module, name = told["job"]
    job = getattr(importlib.import_module(module), name)
    with gpucomm.init() as comm:
        links = probe.measure(comm, fresh=True).links
        gathered = comm.gather_objects(job(comm, *told["args"]), root=0)
        if comm.rank == 0:
            found = {"by_rank": gathered, "alpha": links.alpha, "beta": links.beta}
            Path(told["out"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
