"""Writing Markdown."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["table"]


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns a table; a heading that ends in ">" aligns its column to the right."""
    rules = ["---:" if heading.endswith(">") else "---" for heading in headings]
    lines = [[heading.rstrip(">") for heading in headings], rules, *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )
