"""per_tensor: every gradient travels alone, as soon as it is there (wait-free back-propagation).

Source: Zhang et al. 2017, Poseidon (WFBP). Most overlap, most messages: right where a message
costs little beyond its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpucomm.merge.base import MergePolicy, register

__all__ = ["PerTensor"]


@register
class PerTensor(MergePolicy):
    """One message per tensor."""

    form = '"per_tensor"'

    @classmethod
    def parse(cls, spec: str) -> PerTensor | None:
        """Takes the word alone."""
        return cls() if spec == "per_tensor" else None

    def plan(self, sizes_bytes: Sequence[int]) -> list[list[int]]:
        """Returns a group per tensor."""
        return [[index] for index in range(len(sizes_bytes))]
