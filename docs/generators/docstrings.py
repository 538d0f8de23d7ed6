"""From Google docstrings to Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["split_signature", "to_markdown"]

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$")
_SIGNATURE = re.compile(r"^\w+\(.*\)( -> .*)?$")
_PLAIN = (
    (r"(typing\.)?SupportsInt \| (typing\.)?SupportsIndex", "int"),
    (r"(typing\.)?SupportsFloat \| (typing\.)?SupportsIndex", "float"),
    (r"\bself: [\w.]+(, )?", ""),
    (r"collections\.abc\.|typing\.|gpucomm\._core\.", ""),
)


def split_signature(text: str) -> tuple[str, str] | None:
    """Splits the docstring of something bound from C++.

    Returns:
        (signature in Python's own words, text), or None where there is no signature.
    """
    first, _, rest = text.partition("\n")
    if not _SIGNATURE.match(first):
        return None
    for pattern, plain in _PLAIN:
        first = re.sub(pattern, plain, first)
    return first, rest.strip()


def to_markdown(text: str) -> str:
    """Turns a docstring into paragraphs and lists; its examples into code."""
    return "\n".join(_lines(text.splitlines())).strip()


def _lines(lines: list[str]) -> Iterator[str]:
    section = ""  # whose text is a list
    example = False
    for line in lines:
        if line.startswith(">>> ") != example and (not example or not line.strip()):
            yield "```" if example else "\n```python"
            example = not example
        if example:
            yield line
        elif found := _SECTION.match(line):
            section = found[1]
            yield f"\n**{section}**\n"
        elif not line.startswith(" "):
            section = section if not line else ""
            yield _text(line)
        else:
            yield _item(line) if section else _text(line.strip())
    if example:
        yield "```"


def _item(line: str) -> str:
    """A line of a section: `name: text` begins an item of a list, a deeper line goes on with it."""
    found = re.match(r"^    (\*{0,2}\w+(?:, \w+)*): (.*)$", line)
    return f"- `{found[1]}`: {_text(found[2])}" if found else _text(line.strip())


def _text(line: str) -> str:
    return re.sub(r":\w+:`([^`]*)`", r"`\1`", line.replace("``", "`"))
