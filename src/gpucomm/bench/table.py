"""What the terminal shows: a progress bar while measuring, then a table."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from gpucomm.bench.metrics import MEMORIES, Result
from gpucomm.units import format_size

__all__ = ["cells", "fancy", "header", "room_for", "show", "with_progress"]

_TEXTS = 3  # leading columns of words; the others are figures


def header(peers: Sequence[str]) -> list[str]:
    """The names of the columns; a peer's ratio is its first variant's, in brackets its fastest one's."""
    figures = ["time us", "min", "max", "algbw GB/s", "busbw GB/s", *(f"{peer}/ours" for peer in peers)]
    return ["size", "library", "algorithm", *figures, "correct"]


def cells(result: Result, results: Sequence[Result], peers: Sequence[str]) -> list[str]:
    """One line: the median, the least and the largest time, and how many times longer each peer took."""
    times = (result.median_s, min(result.times_s), max(result.times_s))
    words = [format_size(result.nbytes), result.library, result.algorithm]
    figures = [f"{value * 1e6:.4g}" if value < 1e-2 else f"{value * 1e6:.0f}" for value in times]
    figures += [f"{result.algbw:.3g}", f"{result.busbw:.3g}"]
    figures += [_ratio(result, results, peer) for peer in peers]
    return [*words, *figures, "yes" if result.correct else "no"]


def _ratio(result: Result, results: Sequence[Result], peer: str) -> str:
    if result.library not in MEMORIES.values():
        return ""
    theirs = [r.median_s for r in results if r.library == peer and r.nbytes == result.nbytes]
    ratios = [f"{time / result.median_s:.2f}x" for time in (theirs[0], min(theirs))]
    return ratios[0] if len(theirs) == 1 else f"{ratios[0]} ({ratios[1]})"


def with_progress(steps: Iterator[Result | None], total: int, what: str) -> list[Result]:
    """Run all steps and collect their results; with a progress bar where somebody looks on."""
    if not fancy():
        return [result for result in steps if result is not None]
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    results: list[Result] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task(what, total=total)
        for result in steps:
            if result is None:
                progress.advance(task)
            else:
                results.append(result)
    return results


def show(title: str, results: Sequence[Result], peers: Sequence[str]) -> None:
    """Print the table: with rules and colours on a terminal that is wide enough, plain elsewhere."""
    names, rows = header(peers), [cells(result, results, peers) for result in results]
    widths = [max(len(row[i]) for row in [names, *rows]) for i in range(len(names))]
    if fancy() and room_for(widths):
        _show_rich(title, names, rows)
        return
    print(title)
    for row in [names, *rows]:
        padded = (
            text.ljust(width) if i < _TEXTS else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(padded).rstrip())


def _show_rich(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for i, name in enumerate(names):
        align: Any = "left" if i < _TEXTS else "right"
        table.add_column(name, justify=align, no_wrap=True)
    for number, row in enumerate(rows):
        right = "[green]yes[/green]" if row[-1] == "yes" else "[bold red]no[/bold red]"
        last_of_size = number + 1 == len(rows) or rows[number + 1][0] != row[0]
        table.add_row(
            *row[:-1], right, end_section=last_of_size, style="bold" if row[1] in MEMORIES.values() else ""
        )
    Console().print(table)


def room_for(widths: Sequence[int]) -> bool:
    """Whether the terminal holds columns of these widths between rules: a figure that is cut is another."""
    from rich.console import Console

    return sum(width + 3 for width in widths) + 1 <= Console().width


def fancy() -> bool:
    """Whether somebody looks on, and rich can show them something."""
    return sys.stdout is not None and sys.stdout.isatty() and importlib.util.find_spec("rich") is not None
