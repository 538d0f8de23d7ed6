"""A fresh Python that finds modules where this process does, and nowhere else.

By themselves `python -c` and `python -m` look into the current folder first, which may be anybody's, such as
/tmp: only Python 3.11 can be told not to. And PYTHONPATH cannot carry a folder whose name has a colon.
"""

from __future__ import annotations

import sys

__all__ = ["fresh_python"]


def fresh_python(code: str, *arguments: str) -> list[str]:
    """The command that runs `code` in a fresh interpreter.

    Args:
        code: statements; those that import come after the path is set.
        arguments: its `sys.argv[1:]`.
    """
    path = [entry for entry in sys.path if isinstance(entry, str)]  # imports skip the others too
    return [sys.executable, "-c", f"import sys; sys.path[:] = {path!a}\n{code}", *arguments]
