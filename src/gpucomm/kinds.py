"""Kinds of collectives, by their names."""

from __future__ import annotations

__all__ = ["BY_RANK", "ROOTED", "ROOTED_BY_RANK"]

BY_RANK = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")  # every rank has a part of it
ROOTED = ("reduce", "broadcast", "gather", "scatter")
ROOTED_BY_RANK = ("gather", "scatter")  # the root alone has the whole
