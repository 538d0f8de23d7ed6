"""Kinds of collectives, by their names."""

from __future__ import annotations

__all__ = ["BY_RANK", "ROOTED", "ROOTED_BY_RANK"]

# Each rank has, gets or sends to each other one a part of the whole.
BY_RANK = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
ROOTED = ("reduce", "broadcast", "gather", "scatter")
ROOTED_BY_RANK = ("gather", "scatter")  # the root alone has the whole
