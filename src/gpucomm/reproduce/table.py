"""What the terminal shows: what is being done, then a table of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpucomm.bench.table import fancy, room_for
from gpucomm.reproduce.claims import Row
from gpucomm.units import format_size

__all__ = ["cells", "header", "progress", "show", "show_samples"]

_FIRST = ("claim", "paper", "ours", "unit", "how", "goal", "ranks", "bytes", "x")
_SOME = {"c": "codec_to_wire", "share": "communication_share"}  # columns where a row has them
_LAST = ("holds", "note")
_WRAPPED = {"unit": 8, "note": 20}  # columns of words that may take several lines, and how narrow they may be
_FIGURES = ("paper", "ours", "ranks", "bytes", "x", *_SOME)
_WORDS = {True: "yes", False: "no", None: "-"}


def header(rows: Sequence[Row]) -> list[str]:
    """The names of the columns for these rows."""
    some = [name for name, key in _SOME.items() if any(row.setting[key] is not None for row in rows)]
    return [*_FIRST, *some, *_LAST]


def cells(row: Row, names: Sequence[str]) -> list[str]:
    """One line of the table, in these columns."""
    goal = "-" if row.goal is None else f"{row.relation} {row.goal:.4g}"
    under = [str(row.setting["ranks"]), format_size(row.setting["bytes"]), _figure(row.setting["x"])]
    some = [_figure(row.setting[_SOME[name]]) for name in names if name in _SOME]
    figures = [_figure(row.paper), f"{row.ours:.4g}", row.unit, row.how, goal]
    return [row.claim, *figures, *under, *some, _WORDS[row.holds], row.note]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


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
    """Print the table: with rules and colours on a terminal that is wide enough, plain elsewhere."""
    names = header(rows)
    lines = [cells(row, names) for row in rows]
    widths = [max(len(line[i]) for line in [names, *lines]) for i in range(len(names))]
    least = [min(width, _WRAPPED.get(name, width)) for name, width in zip(names, widths, strict=True)]
    if fancy() and room_for(least):
        _show_rich(title, names, lines)
        return
    print(title)
    for line in [names, *lines]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def show_samples(rows: Sequence[Row]) -> None:
    """Print the raw samples of every row."""
    for row in rows:
        print(f"\n{row.claim}: {row.unit}, {row.how}, {row.setting['ranks']} ranks, {row.setting['links']}")
        for name, some in row.samples.items():
            print(f"  {name}: {' '.join(f'{value:.6g}' for value in some)}")


def _show_rich(title: str, names: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    colours = {"yes": "[green]yes[/green]", "no": "[bold red]no[/bold red]"}
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in names:
        figures: Any = "right" if name in _FIGURES else "left"
        table.add_column(name, justify=figures, overflow="fold", no_wrap=name not in _WRAPPED)
    for number, line in enumerate(lines):
        last = number + 1 == len(lines) or lines[number + 1][0] != line[0]
        table.add_row(*line[:-2], colours.get(line[-2], line[-2]), line[-1], end_section=last)
    Console().print(table)
