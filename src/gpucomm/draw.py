"""Drawing a plan: which messages travel when, and where the picture goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError, UnavailableError

__all__ = ["Message", "check_suffix", "draw_plans", "messages"]

SUFFIXES = (".png", ".svg")
MOST_MESSAGES = 5000  # more cannot be told apart


@dataclass(frozen=True)
class Message:
    """One message of a schedule.

    Attributes:
        sender, sent_by: the rank that sends it and which of its steps does.
        receiver, received_by: the same at the other end.
        piece, pieces: the run of pieces that it carries.
        start_s, left_s: when it begins and ceases to occupy the sender.
        begins_s, arrived_s: the same at the receiver, a latency later.
        reduces: whether the receiver folds it into what it has.
    """

    sender: int
    sent_by: int
    receiver: int
    received_by: int
    piece: int
    pieces: int
    start_s: float
    left_s: float
    begins_s: float
    arrived_s: float
    reduces: bool


def messages(plans: Sequence[_core.Plan], schedule: _core.Schedule, links: _core.Links) -> list[Message]:
    """The messages that travel, in the order in which they leave; empty ones do not.

    Args:
        plans: every rank's plan of one call.
        schedule: when their steps run.
        links: the model of the links that it was made on.
    """
    steps = [plan.steps for plan in plans]  # each access makes the list anew
    receives = _receives(steps)
    found = []
    for event in schedule.events:
        if event.peer < 0:
            continue
        received_by = receives[event.rank, event.peer].pop(0)
        if event.end_s <= event.start_s:
            continue
        step = steps[event.rank][event.step]
        inside = bool(links.nodes) and links.nodes[event.rank] == links.nodes[event.peer]
        latency = links.inner_lambda if inside else links.lambda_
        ends = (event.rank, event.step, event.peer, received_by, step.piece, step.pieces)
        times = (event.start_s, event.end_s, event.start_s + latency, event.end_s + latency)
        reduces = steps[event.peer][received_by].kind != "recv"
        found.append(Message(*ends, *times, reduces))
    return sorted(found, key=lambda message: (message.start_s, message.sender))


def _receives(steps: Sequence[Sequence[_core.Step]]) -> dict[tuple[int, int], list[int]]:
    """Per (sender, receiver) the receiving steps, in the order in which their messages come."""
    receives = defaultdict(list)
    for rank, own in enumerate(steps):
        for index, step in enumerate(own):
            if step.kind.startswith("recv"):
                for peer in step.peers:
                    receives[peer, rank].append(index)
    return receives


def check_suffix(path: Path) -> None:
    """Raises InvalidArgumentError unless pictures are drawn in such files."""
    if path.suffix.lower() not in SUFFIXES:
        known = " or ".join(SUFFIXES)
        raise InvalidArgumentError(f"the picture's name must end in {known}, got {str(path)!r}")


def draw_plans(
    plans: Sequence[_core.Plan], schedule: _core.Schedule, links: _core.Links, subtitle: str, path: Path
) -> None:
    """Draw the plans of one call as they run on a model of the links.

    Args:
        plans: every rank's plan.
        schedule: when their steps run.
        links: the model of the links that it was made on.
        subtitle: what to say below the title.
        path: where the picture goes; .png or .svg.

    Raises:
        InvalidArgumentError: another suffix, a path that cannot be written, or too much for one picture.
        UnavailableError: matplotlib is not installed.
    """
    check_suffix(path)
    moved = messages(plans, schedule, links)
    if len(moved) > MOST_MESSAGES:
        raise InvalidArgumentError(
            f"a picture of {len(moved)} messages is not readable, at most {MOST_MESSAGES} are drawn:"
            " take fewer ranks or segments"
        )
    try:
        import matplotlib

        from gpucomm.picture import Picture
    except ImportError:
        raise UnavailableError(
            "pictures need matplotlib, which is not installed: pip install 'gpucomm[bench]'"
        ) from None
    with matplotlib.rc_context({"svg.hashsalt": "gpucomm", "font.size": 11, "hatch.linewidth": 0.6}):
        figure = Picture(plans, schedule, moved, links.kind == "chain").figure(subtitle)
        _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    stamp = {"Date": None} if path.suffix.lower() == ".svg" else {}  # the same plan gives the same file
    try:
        figure.savefig(path, dpi=150, metadata=stamp)
    except OSError as error:
        raise InvalidArgumentError(f"the picture {str(path)!r} cannot be written: {error}") from error
