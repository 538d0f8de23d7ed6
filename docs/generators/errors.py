"""One class of error: what it is, what it derives from, and the text of one that was really raised."""

from __future__ import annotations

import functools
import inspect
import textwrap

from generators.error_examples import EXAMPLES
from gpucomm import errors

__all__ = ["error", "raised"]


def error(name: str) -> str:
    """Returns the description of an error class, by its name."""
    kind = getattr(errors, name)
    bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
    text = f"{inspect.getdoc(kind)} Derives from {bases}."
    if name not in EXAMPLES:
        return text
    code = inspect.getsource(EXAMPLES[name]).split('"""', 2)[2]
    example = textwrap.dedent(code).strip()
    return f"{text}\n\n```python\n{example}\n```\n\n```text\n{name}: {raised(name)}\n```"


@functools.cache
def raised(name: str) -> str:
    """Raises the example of an error class and returns its text.

    Raises:
        AssertionError: the example raised nothing, or another class.
    """
    try:
        EXAMPLES[name]()
    except errors.Error as found:
        cause = found.__cause__ if isinstance(found.__cause__, errors.Error) else found
        chosen = found if type(found).__name__ == name else cause
        assert type(chosen).__name__ == name, f"the example of {name} raised {found!r}"
        return str(chosen)
    raise AssertionError(f"the example of {name} raised nothing")
