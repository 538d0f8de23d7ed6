"""What the examples take on their command lines: the library checks it, and argparse shows its sentence."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import gpucomm

__all__ = ["algorithm_of", "checked", "positive", "run"]


def run(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    body: Callable[[argparse.Namespace], int],
) -> int:
    """Runs a command with what its arguments say; what the library refuses of them is argparse's error."""
    options = parser.parse_args(arguments)
    try:
        return body(options)
    except gpucomm.errors.InvalidArgumentError as error:
        parser.error(str(error))


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def checked(check: Callable[[str], object]) -> Callable[[str], str]:
    """Returns a type of arguments: the texts that a function of the library takes."""

    def taken(text: str) -> str:
        try:
            check(text)
        except gpucomm.errors.InvalidArgumentError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return taken


def algorithm_of(*collectives: str) -> Callable[[str], str]:
    """Returns a type of arguments: "auto" and the algorithms that offer these collectives."""
    known = gpucomm.algorithms().items()
    offer = ["auto", *(name for name, about in known if {*collectives} <= {*about["collectives"]})]

    def taken(text: str) -> str:
        if text not in offer:
            raise argparse.ArgumentTypeError(f"{text!r} must be one of {', '.join(offer)}")
        return text

    return taken
