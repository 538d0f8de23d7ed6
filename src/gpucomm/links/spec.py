"""What a description of links says, of a world of any size and of some of its ranks."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, SupportsIndex

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError
from gpucomm.links.text import PLACES, Change

__all__ = ["LinkSpec", "figures", "restricted"]

_FIGURES = (
    *("kind", "alpha", "beta", "lambda_", "gamma"),
    *("nodes", "betas", "inner_alpha", "inner_beta", "inner_lambda"),
)


class Phase(NamedTuple):
    """What holds from some second on.

    Attributes:
        at: seconds since the links were made.
        betas: seconds a byte, of each rank (chain: link; nodes: node).
        alpha: seconds of overhead.
        lambda_: seconds of latency.
        jitter: seconds.
    """

    at: float
    betas: list[float]
    alpha: float
    lambda_: float
    jitter: float


@dataclass(frozen=True)
class LinkSpec:
    """Links as described by a text.

    Attributes:
        links: what the cost model knows of them, without rates of their own.
        half_duplex: both directions share a port (switch, nodes) or a link (chain).
        jitter: seconds; up to so much is added to the latency of each message.
        seed: of the jitter.
        changes: rates of single ranks, links or nodes, and what holds from later times on, in order.
        text: that described them.
    """

    links: _core.Links
    half_duplex: bool = False
    jitter: float = 0.0
    seed: int = 0
    changes: tuple[Change, ...] = ()
    text: str = field(default="", compare=False)

    def check(self, world: int, nodes: Sequence[int] = ()) -> None:
        """Raise InvalidArgumentError unless these can be the links of so many ranks on such nodes.

        Args:
            world: number of ranks.
            nodes: the node of each rank as told elsewhere; empty: not told.
        """
        if isinstance(world, bool) or not isinstance(world, SupportsIndex) or operator.index(world) < 1:
            raise InvalidArgumentError(f"world must be a whole number of at least 1, got {world!r}")
        kind, own = self.links.kind, self.links.nodes
        if own and len(own) != world:
            raise InvalidArgumentError(
                f"links {self.text!r} are between nodes of {len(own)} ranks together, but there are {world}"
            )
        if own and nodes and list(nodes) != own:
            raise InvalidArgumentError(
                f"links {self.text!r} say which ranks are on one node, and nodes= (--nodes, GPUCOMM_NODES)"
                " says it otherwise: leave one of them out"
            )
        count, last = self._places(world), max((change.place for change in self.changes), default=-1)
        if last >= count:
            raise InvalidArgumentError(
                f"links {self.text!r}: there is no {PLACES[kind]}{last}: {world} ranks have {count}"
                f" {PLACES[kind]}s, numbered from 0"
            )

    def phases(self, world: int) -> list[Phase]:
        """What holds when, the first from the start on.

        Args:
            world: number of ranks.

        Raises:
            InvalidArgumentError: as `check`.
        """
        self.check(world)
        links, places, own = self.links, range(self._places(world)), dict[int, float]()
        last = Phase(0.0, [links.beta for _ in places], links.alpha, links.lambda_, self.jitter)
        phases = {last.at: last}
        for change in self.changes:
            changed: dict[str, Any] = {change.what: change.value}
            if change.what == "rate":
                own[change.place] = 8 / change.value
                changed = {"betas": [own.get(place, own.get(-1, links.beta)) for place in places]}
            last = last._replace(at=change.at, **changed)
            phases[last.at] = last
        return list(phases.values())

    def model(self, world: int) -> _core.Links:
        """The links of so many ranks as the cost model takes them: with the rates from the start."""
        own = any(not change.at for change in self.changes)
        return _changed(self.links, betas=self.phases(world)[0].betas if own else [])

    def arguments(self, world: int) -> dict[str, Any]:
        """The keywords that `gpucomm.Communicator` takes for them.

        Args:
            world: number of ranks.

        Raises:
            InvalidArgumentError: as `check`.
        """
        return {
            "links": self.model(world),
            "half_duplex": self.half_duplex,
            "jitter": self.jitter,
            "seed": self.seed,
            "script": self.phases(world)[1:],
        }

    @property
    def canonical(self) -> str:
        """A text that is the same for the same links, and reads as them."""
        model = self.links
        sizes = "+".join(str(model.nodes.count(node)) for node in dict.fromkeys(model.nodes))
        parts = [model.kind, f"overhead={model.alpha!r}s", f"beta={model.beta!r}s"]
        parts += [f"latency={model.lambda_!r}s", f"gamma={model.gamma!r}s"]
        parts += [f"of={sizes}"] if sizes else []
        parts += ["half"] if self.half_duplex else []
        parts += [change.text(model.kind) for change in self.changes]
        return ",".join([*parts, f"jitter={self.jitter!r}s", f"seed={self.seed}"])

    def _places(self, world: int) -> int:
        if self.links.kind == "nodes":
            return len(set(self.links.nodes))
        return world - 1 if self.links.kind == "chain" else world


def restricted(emulation: dict[str, Any], members: Sequence[int]) -> dict[str, Any]:
    """The keywords of emulated links for some of the ranks: each keeps its rates, and its node.

    Args:
        emulation: `Communicator.emulation` of all.
        members: the ranks, in their new order; neighbours of a chain have the slowest of the links between.
    """
    if not emulation:
        return {}
    links = emulation["links"]
    old_nodes = [links.nodes[member] for member in members] if links.nodes else []
    kept = list(dict.fromkeys(old_nodes))

    def own(betas: Sequence[float]) -> list[float]:
        if links.kind == "chain":
            pairs = itertools.pairwise(members)
            return [max(betas[min(pair) : max(pair)], default=links.beta) for pair in pairs]
        return [betas[place] for place in (kept or members)] if betas else []

    changed = _changed(links, nodes=[kept.index(node) for node in old_nodes], betas=own(links.betas))
    script = [(at, own(betas), *times) for at, betas, *times in emulation["script"]]
    return emulation | {"links": changed, "script": script}


def figures(links: _core.Links) -> dict[str, Any]:
    """The keywords that make the same links."""
    return {name: getattr(links, name) for name in _FIGURES}


def _changed(links: _core.Links, **changes: Any) -> _core.Links:
    return _core.Links(**(figures(links) | changes))
