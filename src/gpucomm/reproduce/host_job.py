"""What a rank of a job over several hosts does: measure calls, and rank 0 writes all ranks' times."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gpucomm
from gpucomm import probe
from gpucomm.reproduce.run import Call, measure_calls

__all__ = ["main"]


def main(text: str) -> None:
    """Do the job.

    Args:
        text: JSON with nbytes, calls, repeats and out, the file to write.
    """
    job = json.loads(text)
    with gpucomm.init() as comm:
        figures = probe.measure(comm, fresh=True)
        spans = measure_calls(comm, job["nbytes"], [Call(*call) for call in job["calls"]], job["repeats"])
        gathered = comm.gather_objects(spans, root=0)
        if comm.rank == 0:
            links = figures.links
            found = {"spans": gathered, "alpha": links.alpha, "beta": links.beta}
            Path(job["out"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
