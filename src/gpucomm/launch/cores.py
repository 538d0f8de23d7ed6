"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["affinity", "cgroup_quota", "threads_per_rank", "usable_cores"]


def affinity() -> set[int]:
    """The cores of the affinity mask; where a sandbox refuses to tell it, all of the machine."""
    try:
        return os.sched_getaffinity(0)
    except OSError:
        return set(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Cores of the affinity mask, or fewer where a cgroup quota allows less; at least 1."""
    quota, cores = cgroup_quota(), len(affinity())
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def threads_per_rank(ranks: int) -> int:
    """Threads for each of `ranks` processes of this node, so that together they fill the cores."""
    return max(1, usable_cores() // ranks)


def cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores that the cgroup allows, or None without a limit (cgroup 2, then 1)."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit_us = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        return None if limit_us <= 0 else limit_us / int((root / "cpu" / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
