"""What a paper claims, and the rows that say what came out here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpucomm.reproduce.pictures import Picture
    from gpucomm.reproduce.run import Run

__all__ = ["HOW", "RELATIONS", "Claim", "Outcome", "Paper", "Row", "holds", "setting"]

HOW = ("measured", "emulated", "simulated", "counted")
RELATIONS = ("<=", ">=", "==")


def holds(ours: float, relation: str, goal: float | None) -> bool | None:
    """Whether `ours` stands in the relation to the goal; None where there is nothing to hold."""
    if goal is None:
        return None
    if relation == "==":
        return ours == goal
    return ours <= goal if relation == "<=" else ours >= goal


def setting(
    *,
    ranks: int,
    nbytes: int,
    links: str,
    x: float,
    repeats: int,
    communication_share: float | None = None,
    codec_to_wire: float | None = None,
) -> dict[str, Any]:
    """Under what a figure was obtained, with the keys that every row has.

    Args:
        ranks: of the largest world.
        nbytes: of the message.
        links: as `gpucomm.local(links=)` takes them.
        x: n beta / alpha, the time of the bytes over the overhead of a message.
        repeats: how often it was measured; 1 where it was computed.
        communication_share: of a training step's time, where there is a step.
        codec_to_wire: c, the time to code a hop's message over its time on the wire, where there is a codec.
    """
    return {
        "ranks": ranks,
        "bytes": nbytes,
        "links": links,
        "x": x,
        "communication_share": communication_share,
        "codec_to_wire": codec_to_wire,
        "repeats": repeats,
    }


@dataclass(frozen=True)
class Row:
    """One figure beside the paper's.

    Attributes:
        claim: its key.
        paper: the paper's figure; None where it gives none.
        ours: ours.
        unit: of both.
        how: one of `HOW`.
        relation: one of `RELATIONS`, between ours and the goal.
        goal: None where there is nothing to hold.
        setting: see `setting`.
        samples: raw, by name: seconds, or what was counted.
        note: what one must know to read it.
    """

    claim: str
    paper: float | None
    ours: float
    unit: str
    how: str
    relation: str
    goal: float | None
    setting: Mapping[str, Any]
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the goal is reached."""
        return holds(self.ours, self.relation, self.goal)

    def as_json(self, source: str) -> dict[str, Any]:
        """The row for machines."""
        return {
            "claim": self.claim,
            "source": source,
            "paper": self.paper,
            "ours": self.ours,
            "unit": self.unit,
            "how": self.how,
            "goal": self.goal,
            "relation": self.relation,
            "setting": dict(self.setting),
            "samples": {name: list(some) for name, some in self.samples.items()},
            "holds": self.holds,
            "note": self.note,
        }


@dataclass(frozen=True)
class Outcome:
    """What the work on one claim gave: its rows and its picture."""

    rows: Sequence[Row]
    picture: Picture


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Attributes:
        name: its key.
        says: what the paper says, one sentence.
        work: obtains our figures.
    """

    name: str
    says: str
    work: Callable[[Run], Outcome]


@dataclass(frozen=True)
class Paper:
    """A paper: its name on the command line, its title, where it is found, and its claims."""

    name: str
    title: str
    source: str
    claims: tuple[Claim, ...]
