"""What a description of links says, of a world of any size and of some of its ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError
from gpucomm.links.text import PLACES, Change

__all__ = ["LinkSpec", "figures", "restricted"]

_FIGURES = (
    *("kind", "alpha", "beta", "lambda_", "gamma"),
    *("nodes", "betas", "inner_alpha", "inner_beta", "inner_lambda"),
)


@dataclass(frozen=True)
class LinkSpec:
    """Links as described by a text.

    Attributes:
        links: what the cost model knows of them, without rates of their own.
        half_duplex: both directions share a port (switch, nodes) or a link (chain).
        jitter: seconds; up to so much is added to the latency of each message.
        seed: of the jitter.
        changes: rates of single ranks, links or nodes, and those from later times on, in order.
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
        if world < 1:
            raise InvalidArgumentError(f"world must be at least 1, got {world}")
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

    def rates(self, world: int) -> list[tuple[float, list[float]]]:
        """From which second on which seconds a byte hold, of each rank (chain: link; nodes: node).

        Args:
            world: number of ranks.

        Raises:
            InvalidArgumentError: as `check`.
        """
        self.check(world)
        beta, own = self.links.beta, dict[int, float]()
        phases = {0.0: [beta] * self._places(world)}
        for change in self.changes:
            own[change.place] = 8 / change.bits
            beta = own.get(-1, beta)
            phases[change.at] = [own.get(place, beta) for place in range(self._places(world))]
        return list(phases.items())

    def model(self, world: int) -> _core.Links:
        """The links of so many ranks as the cost model takes them: with the rates from the start."""
        own = any(not change.at for change in self.changes)
        return _changed(self.links, betas=self.rates(world)[0][1] if own else [])

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
            "script": self.rates(world)[1:],
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
    script = [(at, own(betas)) for at, betas in emulation["script"]]
    return emulation | {"links": changed, "script": script}


def figures(links: _core.Links) -> dict[str, Any]:
    """The keywords that make the same links."""
    return {name: getattr(links, name) for name in _FIGURES}


def _changed(links: _core.Links, **changes: Any) -> _core.Links:
    return _core.Links(**(figures(links) | changes))
