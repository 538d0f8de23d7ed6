"""Whether this machine is fast enough to emulate links."""

from __future__ import annotations

import time

from gpucomm.links.spec import LinkSpec

__all__ = ["host_bound", "memory_bandwidth"]


def host_bound(spec: LinkSpec, world: int) -> str:
    """Why emulated links are too fast for this machine, as a sentence, or "" where they are not.

    Args:
        spec: the links.
        world: number of ranks.
    """
    limit = memory_bandwidth() / 4
    phases = spec.phases(world)
    free = any(not beta for phase in phases for beta in phase.betas)
    most = max(sum(1 / beta for beta in phase.betas if beta) for phase in phases)
    if most <= limit and not free:
        return ""
    wanted = "no limit" if free else f"{most / 1e9:.3g} GB/s"
    return (
        f"emulated links of {world} ranks together want {wanted}, more than a quarter of this machine's"
        f" memory bandwidth ({limit / 1e9:.3g} GB/s):"
        " what is measured on them is the machine's, not the links'"
    )


def memory_bandwidth() -> float:
    """Bytes a second that one core copies from memory to memory; measured anew, some milliseconds."""
    import numpy as np

    source = np.ones(16 << 20, np.uint8)
    target = np.empty_like(source)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - start)
    return source.nbytes / best
