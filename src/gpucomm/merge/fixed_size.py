"""fixed_size: a bucket closes as soon as it holds the given size, as in PyTorch's DDP.

Source: Li et al. 2020, PyTorch Distributed. A size counts in powers of two, as DDP's ``bucket_cap_mb`` does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpucomm.merge.base import MergePolicy, register

__all__ = ["FixedSize"]

_UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([KMG]?B)")


@register
class FixedSize(MergePolicy):
    """Buckets of at least `cap_bytes`, but for the last."""

    form = 'a size such as "25MB" or "512KB"'

    def __init__(self, cap_bytes: int) -> None:
        self.cap_bytes = cap_bytes

    @classmethod
    def parse(cls, spec: str) -> FixedSize | None:
        """Takes a positive number and its unit: B, KB, MB or GB."""
        match = _SIZE.fullmatch(spec)
        if match is None:
            return None
        cap_bytes = int(float(match[1]) * _UNITS[match[2]])
        return cls(cap_bytes) if cap_bytes > 0 else None

    def plan(self, sizes_bytes: Sequence[int]) -> list[list[int]]:
        """Closes a group once its sum reaches the cap."""
        groups: list[list[int]] = []
        open_bytes = self.cap_bytes
        for index, size in enumerate(sizes_bytes):
            if open_bytes >= self.cap_bytes:
                groups.append([])
                open_bytes = 0
            groups[-1].append(index)
            open_bytes += size
        return groups
