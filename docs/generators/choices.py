"""The tables of what there is to choose: merge policies, exchanges, commands; from their registries."""

from __future__ import annotations

import inspect

from generators.markdown import table
from gpucomm import _core, cli, codecs, exchange, merge

__all__ = ["commands", "exchanges", "merges"]


def _about(kind: type) -> str:
    """The first sentences of the module that a class lives in, one line: its file is its description."""
    text = inspect.getdoc(inspect.getmodule(kind)) or ""
    return " ".join(text.partition(": ")[2].replace("``", "`").split())


def merges() -> str:
    """Returns every merge policy that the package brings."""
    policies = [getattr(merge, name) for name in merge.__all__ if inspect.isclass(getattr(merge, name))]
    rows = [(kind.form.replace('"', "`"), _about(kind)) for kind in policies if kind is not merge.MergePolicy]
    return table(("merge", "what it does"), rows)


def exchanges() -> str:
    """Returns every exchange that the package brings, codecs among them."""
    kinds = [getattr(exchange, name) for name in exchange.__all__ if inspect.isclass(getattr(exchange, name))]
    rows = [
        (f"`{kind.name}`", _about(kind)) for kind in kinds if getattr(kind, "name", "") in exchange.names()
    ]
    for about in codecs.names().values():
        lossy = _core.Codec(about["examples"][0]).traits["lossy"]
        how = "with error feedback" if lossy else "nothing is lost"
        rows.append((f"`{about['usage'].split()[0].rstrip(',')}`", f"coded, {how}: {about['summary']}"))
    return table(("exchange", "what it does"), rows)


def commands() -> str:
    """Returns every subcommand of `gpucomm`."""
    rows = [(f"`gpucomm {name}`", summary) for name, (_, summary) in cli.COMMANDS.items()]
    return table(("command", "what it does"), rows)
