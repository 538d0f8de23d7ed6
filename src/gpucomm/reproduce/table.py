"""What the terminal shows: what is being done, then a table of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpucomm.bench.table import fancy
from gpucomm.reproduce.claims import Row
from gpucomm.units import format_size

__all__ = ["HEADER", "cells", "progress", "show", "show_samples"]

HEADER = ("claim", "paper", "ours", "unit", "how", "goal", "ranks", "bytes", "x", "holds", "note")
_WORDS = {True: "yes", False: "no", None: "-"}


def cells(row: Row) -> list[str]:
    """One line of the table."""
    goal = "-" if row.goal is None else f"{row.relation} {row.goal:g}"
    paper = "-" if row.paper is None else f"{row.paper:g}"
    under = [str(row.setting["ranks"]), format_size(row.setting["bytes"]), f"{row.setting['x']:g}"]
    return [row.claim, paper, f"{row.ours:.4g}", row.unit, row.how, goal, *under, _WORDS[row.holds], row.note]


@contextmanager
def progress(total: int, what: str) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """A bar over the claims, where somebody looks on; gives two functions: tell what is done, one is done."""
    if not fancy():
        yield (lambda text: None), (lambda: None)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield (lambda text: bar.update(task, description=text)), (lambda: bar.advance(task))


def show(title: str, rows: Sequence[Row]) -> None:
    """Print the table: with rules and colours on a terminal, plain elsewhere."""
    lines = [cells(row) for row in rows]
    if fancy():
        _show_rich(title, lines)
        return
    widths = [max(len(line[i]) for line in [HEADER, *lines]) for i in range(len(HEADER))]
    print(title)
    for line in [HEADER, *lines]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def show_samples(rows: Sequence[Row]) -> None:
    """Print the raw samples of every row."""
    for row in rows:
        print(f"\n{row.claim}: {row.unit}, {row.how}, {row.setting['ranks']} ranks, {row.setting['links']}")
        for name, some in row.samples.items():
            print(f"  {name}: {' '.join(f'{value:.6g}' for value in some)}")


def _show_rich(title: str, lines: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    colours = {"yes": "[green]yes[/green]", "no": "[bold red]no[/bold red]"}
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in HEADER:
        figures: Any = "right" if name in ("paper", "ours", "ranks", "bytes", "x") else "left"
        table.add_column(name, justify=figures, overflow="fold", no_wrap=name not in ("note", "unit"))
    for number, line in enumerate(lines):
        last = number + 1 == len(lines) or lines[number + 1][0] != line[0]
        table.add_row(*line[:-2], colours.get(line[-2], line[-2]), line[-1], end_section=last)
    Console().print(table)
