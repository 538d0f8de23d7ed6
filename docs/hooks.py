"""The mkdocs hook: replaces markers such as `<!-- table: algorithms -->` by what the package says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))  # what its results are held against

from generators import KINDS

_MARKER = re.compile(r"^<!-- (\w+): (\S+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    return fill(markdown)


def fill(markdown: str) -> str:
    """Replaces the markers of a page.

    Args:
        markdown: a page; a marker stands alone on its line. Comments of other kinds are left as they are.

    Returns:
        The page with its generated parts.

    Raises:
        KeyError: a marker of a known kind has an unknown name.
    """
    return _MARKER.sub(lambda found: KINDS[found[1]](found[2]) if found[1] in KINDS else found[0], markdown)
