"""one: all gradients travel in one message, after the last of them.

Source: ours. No overlap, one message: right where overhead is dear and compute is short.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpucomm.merge.base import MergePolicy, register

__all__ = ["One"]


@register
class One(MergePolicy):
    """One message for everything."""

    form = '"one"'

    @classmethod
    def parse(cls, spec: str) -> One | None:
        """Takes the word alone."""
        return cls() if spec == "one" else None

    def plan(self, sizes_bytes: Sequence[int]) -> list[list[int]]:
        """Returns a single group, or none when there are no tensors."""
        return [list(range(len(sizes_bytes)))] if sizes_bytes else []
