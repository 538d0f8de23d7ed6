"""The Python API: signatures and docstrings as they are in the package."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from generators.docstrings import split_signature, to_markdown

__all__ = ["reference"]


class _Bare:
    """An annotation that shows without quotes."""

    def __init__(self, text: object) -> None:
        self._text = text if isinstance(text, str) else inspect.formatannotation(text)

    def __repr__(self) -> str:
        return self._text


def reference(name: str) -> str:
    """Returns signatures and docstrings of public names: of a `module`, or some: `module:name,name`."""
    module_name, _, only = name.partition(":")
    module = importlib.import_module(module_name)
    parts = []
    for public in only.split(",") if only else module.__all__:
        entry = getattr(module, public)
        heading = f"### `{module_name}.{public}`"
        if inspect.isclass(entry):
            parts.append(f"{heading}\n\n{_class(public, entry, module)}")
        elif callable(entry):
            parts.append(f"{heading}\n\n{_function(public, entry)}")
    return "\n\n".join(parts)


def _function(name: str, entry: Any) -> str:
    signature, text = _described(name, entry)
    return f"```python\n{signature}\n```\n\n{to_markdown(text)}"


def _class(name: str, kind: type, module: ModuleType) -> str:
    parts = []
    made_by_users = not inspect.isabstract(kind) and not getattr(kind, "_is_protocol", False)
    if inspect.isfunction(vars(kind).get("__init__")) and made_by_users:
        parts.append(f"```python\n{name}{_signature(kind).removesuffix(' -> None')}\n```")
    parts.append(to_markdown(inspect.getdoc(kind) or ""))
    for member, entry in _members(kind, module):
        is_property = isinstance(entry, property)
        text = (
            to_markdown(inspect.getdoc(entry) or "") if is_property else _function(f"{name}.{member}", entry)
        )
        parts.append(f"#### `{name}.{member}`\n\n{text}")
    return "\n\n".join(parts)


def _members(kind: type, module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a class and its bases in this package offer, but for what a public base describes."""
    seen: dict[str, Any] = {}
    shown = [base for base in kind.__mro__[1:] if vars(module).get(base.__name__) is base]
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] != "gpucomm":
            continue
        for member, entry in vars(base).items():
            if not member.startswith("_") and not any(hasattr(other, member) for other in shown):
                seen.setdefault(member, entry)
    for member, entry in seen.items():
        usable = entry.__func__ if isinstance(entry, (classmethod, staticmethod)) else entry
        text = inspect.getdoc(usable) or ""
        if text and not text.startswith("Alias for") and (callable(usable) or isinstance(usable, property)):
            yield member, usable


def _described(name: str, entry: Any) -> tuple[str, str]:
    """The signature and the text; what comes from C++ has the signature in its docstring."""
    text = inspect.getdoc(entry) or ""
    if not inspect.isfunction(entry):
        found = split_signature(text)
        if found is not None:
            return re.sub(r"^\w+", name, found[0]), found[1]
    return f"{name}{_signature(entry)}", text


def _signature(entry: Any) -> str:
    signature = inspect.signature(entry)
    parameters = [
        p.replace(annotation=p.annotation if p.annotation is p.empty else _Bare(p.annotation))
        for p in signature.parameters.values()
        if p.name not in ("self", "cls")
    ]
    result = signature.return_annotation
    result = result if result is signature.empty else _Bare(result)
    return str(signature.replace(parameters=parameters, return_annotation=result))
