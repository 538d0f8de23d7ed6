"""Trains a small network on handwritten digits over several ranks.

Alone, it compares the algorithms: it starts four ranks on this machine, trains with each algorithm and once
with a single process, checks that all of them learn the same, and draws what it saw:

    python examples/train_digits.py

Under a launcher it is one training, every process a rank of it:

    gpucomm run -n 4 examples/train_digits.py --algorithm linear_pipeline
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from arguments import algorithm_of, checked, positive, run
from digits.checks import check_ranks, check_reference
from digits.data import load
from digits.report import print_table, row
from digits.session import advance, begin, finish
from digits.training import Result, Settings, Training, check_batch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import gpucomm
from gpucomm.errors import InvalidArgumentError
from gpucomm.json_file import check_writable, write_json
from gpucomm.launch import World

ALGORITHMS = ("ring", "linear_pipeline", "binomial_tree", "bidirectional_exchange")
PICTURE = Path("demo/train_digits.png")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(_parser(), arguments, _run)


def _run(options: argparse.Namespace) -> int:
    settings = Settings(
        algorithm=options.algorithm or "auto", merge=options.merge, epochs=options.epochs, batch=options.batch
    )
    with gpucomm.init() as comm:
        if comm.rank == 0:
            check_writable(options.json)
        if comm.world > 1:
            return train_as_rank(comm, settings, options.json)
    check_batch(settings.batch, options.ranks, len(load()[0].labels))
    _make_folder(options.picture)
    algorithms = (options.algorithm,) if options.algorithm else ALGORITHMS
    return compare(settings, algorithms, options.ranks, options.json, options.picture)


def _make_folder(picture: Path) -> None:
    """Finds out before the training whether the picture can be drawn there."""
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(f"--picture {str(picture)!r} cannot be written: {error}") from error
    check_writable(picture, "--picture")


def _parser() -> argparse.ArgumentParser:
    defaults = Settings()
    parser = argparse.ArgumentParser(description="Train on handwritten digits over several ranks.")
    parser.add_argument(
        "--algorithm",
        type=algorithm_of("all_reduce"),
        help="this one (default: auto under a launcher, else several in turn)",
    )
    parser.add_argument(
        "--merge",
        default=defaults.merge,
        type=checked(gpucomm.merge.parse),
        help="which gradients travel together",
    )
    parser.add_argument("--epochs", type=positive, default=defaults.epochs)
    parser.add_argument(
        "--batch", type=positive, default=defaults.batch, help="images per step, of all ranks together"
    )
    parser.add_argument(
        "--ranks", type=positive, default=4, help="how many to start when there is no launcher"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--picture", type=Path, default=PICTURE, metavar="FILE", help="draw them there")
    return parser


def progress_bar(console: Console, *, disable: bool = False) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=disable or not console.is_terminal)


def train_as_rank(comm: gpucomm.Communicator, settings: Settings, json: Path | None) -> int:
    """Trains as one rank of a job that a launcher has started; rank 0 reports."""
    console = Console()
    training = Training(comm, settings)
    with progress_bar(console, disable=comm.rank > 0) as bar:
        task = bar.add_task(settings.algorithm, total=training.steps_per_epoch * settings.epochs)
        for _ in range(settings.epochs):
            bar.advance(task, training.run_epoch())
    result = training.finish()
    if comm.rank == 0:
        print_table(console, [row(result, None)])
        write_json(json, [row(result, None)])
    return _complain(check_ranks([result]))


def train_locally(world: World, settings: Settings, moved: Callable[[int], None]) -> list[Result]:
    """Trains on every rank of a local world.

    Args:
        world: the ranks.
        settings: of the run.
        moved: told after every epoch how many steps it had.

    Returns:
        Every rank's result.
    """
    world.run(begin, settings)
    for _ in range(settings.epochs):
        moved(world.run(advance)[0])
    return world.run(finish)


def compare(
    settings: Settings, algorithms: Sequence[str], ranks: int, json: Path | None, picture: Path
) -> int:
    """Trains with one process and with each algorithm, checks, and shows the comparison."""
    from digits.picture import draw

    console = Console()
    runs: list[Result] = []
    faults: list[str] = []
    with progress_bar(console) as bar:
        task = bar.add_task("starting", total=None)

        def go(world: World, algorithm: str, name: str) -> None:
            bar.update(task, description=name)
            chosen = replace(settings, algorithm=algorithm)
            results = train_locally(world, chosen, lambda steps: bar.advance(task, steps))
            faults.extend(check_ranks(results))
            runs.append(results[0])

        with gpucomm.local(1) as world:
            go(world, "auto", "one process")
        bar.update(task, total=len(runs[0].losses) * (1 + len(algorithms)), description="starting ranks")
        with gpucomm.local(ranks) as world:
            for algorithm in algorithms:
                go(world, algorithm, algorithm)
    rows = [row(run, None if run is runs[0] else runs[0]) for run in runs]
    print_table(console, rows)
    draw(picture, runs)
    console.print(f"drawn: {picture}")
    write_json(json, rows)
    return _complain(faults + [fault for run in runs[1:] for fault in check_reference(run, runs[0])])


def _complain(faults: Sequence[str]) -> int:
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
