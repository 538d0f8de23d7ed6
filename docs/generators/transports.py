"""The table of transports, from their registry."""

from __future__ import annotations

import gpucomm
from generators.markdown import table

__all__ = ["transports"]


def transports() -> str:
    """Returns every registered transport, what it carries and what it needs."""
    rows = [(f"`{name}`", about["summary"], about["needs"]) for name, about in gpucomm.transports().items()]
    return table(("transport", "carries", "needs"), rows)
