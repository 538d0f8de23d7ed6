"""Trains a character transformer by FSDP2, whose messages gpucomm codes.

Alone, it starts four ranks on this machine with slow links between them, trains without codecs and with
them, and shows both:

    python examples/fsdp_transformer.py --links switch:100Mbit --steps 100

Under a launcher it is one training, every process a rank of it:

    gpucomm run -n 4 --links switch:100Mbit examples/fsdp_transformer.py --all-gather int8
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from arguments import algorithm_of, checked, positive, run
from characters.session import advance, begin, finish
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import gpucomm
from gpucomm.reproduce.compressed_collectives.transformer import Settings

BURST = 5  # steps between two moves of the progress bar
LINKS = "switch:100Mbit,latency=0.1ms"
HEADINGS = ("held-out loss", "step, ms", "waiting", "KiB sent a step")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(_parser(), arguments, _run)


def _run(options: argparse.Namespace) -> int:
    coded = Settings(options.all_gather, options.reduce_scatter, options.algorithm)
    codes = options.algorithm == "auto" or gpucomm.algorithms()[options.algorithm]["coded"]
    if not codes and _name(coded) != "dense":
        raise gpucomm.errors.InvalidArgumentError(
            f"--algorithm {options.algorithm} takes no codec: both collectives must be dense with it"
        )
    console = Console()
    with gpucomm.init() as comm:
        if comm.world > 1:
            return train_as_rank(comm, coded, options.steps, console)
    with gpucomm.local(options.ranks, links=options.links or None) as world:
        runs = {}
        for name, settings in {_name(it): it for it in (Settings(), coded)}.items():
            runs[name] = train(lambda fn, *args: world.run(fn, *args)[0], settings, options.steps, console)
    print_table(console, runs)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Train a character transformer by FSDP2 over coded messages."
    )
    codec = checked(gpucomm.exchange.GradientCodec)
    parser.add_argument(
        "--all-gather", default="zfp:8", type=codec, metavar="CODEC", help="of the parameters"
    )
    parser.add_argument(
        "--reduce-scatter", default="int8", type=codec, metavar="CODEC", help="of the gradients"
    )
    parser.add_argument(
        "--algorithm",
        default="auto",
        type=algorithm_of("all_gather", "reduce_scatter"),
        help="of both collectives",
    )
    parser.add_argument("--steps", type=positive, default=100)
    parser.add_argument(
        "--ranks", type=positive, default=4, help="how many to start when there is no launcher"
    )
    parser.add_argument(
        "--links", default=LINKS, metavar="SPEC", help='of ranks started here; "": as fast as they are'
    )
    return parser


def _name(settings: Settings) -> str:
    codecs = (settings.all_gather, settings.reduce_scatter)
    return "dense" if codecs == ("dense", "dense") else " and ".join(codecs)


def train(
    run: Callable[..., dict[str, float]], settings: Settings, steps: int, console: Console
) -> dict[str, float]:
    """Trains and shows how far it is.

    Args:
        run: calls a function on every rank and returns the first rank's result.
        settings: of the training.
        steps: how many.
        console: for the progress bar.

    Returns:
        The figures of rank 0.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    run(begin, settings)
    with Progress(*columns, console=console, disable=console.quiet or not console.is_terminal) as bar:
        task = bar.add_task(_name(settings), total=steps)
        for done in range(0, steps, BURST):
            burst = min(BURST, steps - done)
            run(advance, burst)
            bar.advance(task, burst)
    return run(finish)


def train_as_rank(comm: gpucomm.Communicator, settings: Settings, steps: int, console: Console) -> int:
    """Trains as one rank of a job that a launcher has started; rank 0 reports."""
    console.quiet = comm.rank > 0
    figures = train(lambda fn, *args: fn(comm, *args), settings, steps, console)
    print_table(console, {_name(settings): figures})
    return 0


def print_table(console: Console, runs: dict[str, dict[str, float]]) -> None:
    """Prints the figures of one or more trainings."""
    table = Table(box=SIMPLE, caption="waiting: the share of the steps in which rank 0 waited for messages")
    table.add_column("all-gather and reduce-scatter")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for name, figures in runs.items():
        table.add_row(
            name,
            f"{figures['loss']:.3f}",
            f"{1e3 * figures['step_s']:.1f}",
            f"{figures['communicating']:.0%}",
            f"{figures['bytes_per_step'] / 1024:,.0f}",
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
