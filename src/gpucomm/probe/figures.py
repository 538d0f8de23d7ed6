"""What was measured between the ranks, and the model of the links that follows from it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError
from gpucomm.probe.rounds import leaders
from gpucomm.units import format_seconds

__all__ = ["Figures"]

Matrix = NDArray[np.float64]
_MATRICES = ("alpha", "latency", "beta")
_MOST_PAIRS = 28  # lines of a table: those of 8 ranks
_FAR_APART = 2.0  # times: worth a sentence


@dataclass(frozen=True, eq=False)
class Figures:
    """The links of a world, as measured.

    The matrices are symmetric, [rank, rank], with NaN on the diagonal and for pairs that have not met (in
    worlds of more than 16 ranks a node, or nodes). A pair of two nodes has what the first ranks of these
    nodes have measured.

    Attributes:
        transport: of the communicator.
        nodes: the node of each rank.
        alpha: overhead, seconds a message.
        latency: seconds.
        beta: seconds a byte, while both directions are busy.
        rates: seconds a byte of what ranks compute, by name: "reduce".
        codecs: seconds that a byte of float32 takes to encode and to decode, by spec: of those that were
            asked for.
        together: nodes with fewer cores than ranks. There ranks are measured all at once, for what a pair
            takes depends on who else wants a core.
        measured_at: seconds since 1970.
    """

    transport: str
    nodes: tuple[int, ...]
    alpha: Matrix
    latency: Matrix
    beta: Matrix
    rates: Mapping[str, float]
    codecs: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    together: tuple[int, ...] = ()
    measured_at: float = field(default_factory=time.time)

    @property
    def links(self) -> _core.Links:
        """The model that "auto" computes with: ports of one speed, that of the slowest rank.

        A rank's figure is the median over its pairs, so that a slow port counts and one odd pair does not.
        """
        mesh = np.not_equal.outer(self.nodes, self.nodes)
        if not mesh.any():
            alpha, latency, beta = self._slowest(~mesh)
            return _core.Links("switch", alpha=alpha, beta=beta, lambda_=latency, gamma=self.rates["reduce"])
        first = leaders(self.nodes)
        alpha, latency, beta = self._slowest(mesh & np.isin(range(len(mesh)), first)[:, None])
        inner_alpha, inner_latency, inner_beta = self._slowest(~mesh)
        return _core.Links(
            "nodes",
            alpha=alpha,
            beta=beta,
            lambda_=latency,
            gamma=self.rates["reduce"],
            nodes=list(self.nodes),
            inner_alpha=inner_alpha,
            inner_beta=inner_beta,
            inner_lambda=inner_latency,
        )

    def to_json(self) -> str:
        """All of it as a JSON text; `from_json` reads it back to the bit."""
        table: dict[str, Any] = {name: _written(getattr(self, name)) for name in _MATRICES}
        about = {"transport": self.transport, "nodes": self.nodes, "together": self.together}
        speeds = {"rates": dict(self.rates), "codecs": dict(self.codecs)}
        return json.dumps(about | table | speeds | {"measured_at": self.measured_at})

    @classmethod
    def from_json(cls, text: str) -> Figures:
        """Reads what `to_json` has written.

        Raises:
            InvalidArgumentError: it is something else.
        """
        try:
            table = json.loads(text)
            world = len(table["nodes"])
            matrices = {name: _read(table[name], world) for name in _MATRICES}
            rates = {str(name): _checked(rate) for name, rate in table["rates"].items()}
            rates["reduce"]
            return cls(
                transport=str(table["transport"]),
                nodes=tuple(int(node) for node in table["nodes"]),
                together=tuple(int(node) for node in table["together"]),
                rates=rates,
                codecs={spec: _speeds(spec, pair) for spec, pair in table.get("codecs", {}).items()},
                measured_at=_checked(table["measured_at"]),
                **matrices,
            )
        except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"these are no figures of links: {error!r}") from None

    def __str__(self) -> str:
        nodes = len(set(self.nodes))
        where = f" on {nodes} nodes" if nodes > 1 else ""
        age = format_seconds(max(time.time() - self.measured_at, 0.0))
        rates = ", ".join(f"{name} {_speed(rate)}" for name, rate in self.rates.items())
        title = f"{len(self.nodes)} ranks{where}, {self.transport}; {rates} a rank; measured {age} ago"
        rows = list(self._rows())
        width = max(len(row[0]) for row in rows)
        head = f"{'':<{width}}   overhead    latency   bandwidth"
        lines = [f"{name:<{width}}  {a:>9}  {b:>9}  {c:>10}".rstrip() for name, a, b, c in rows]
        coding = [f"{spec}: encodes {_speed(e)}, decodes {_speed(d)}" for spec, (e, d) in self.codecs.items()]
        return "\n".join([title, head, *lines, *self._remarks(), *coding])

    def __repr__(self) -> str:
        return f"<gpucomm.probe.Figures of {len(self.nodes)} ranks, {self.transport}>"

    def _slowest(self, chosen: NDArray[np.bool_]) -> list[float]:
        found = []
        for name in _MATRICES:
            known = np.where(chosen, getattr(self, name), np.nan)
            ranks = [np.median(row[~np.isnan(row)]) for row in known if not np.isnan(row).all()]
            found.append(float(max(ranks, default=0.0)))
        return found

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Of each pair, or in larger worlds of each rank; then what "auto" computes with."""
        world = range(len(self.nodes))
        shown: set[int] = set()
        pairs = [(a, b) for a in world for b in range(a) if not math.isnan(self.beta[a, b])]
        for a, b in sorted((b, a) for a, b in pairs) if len(pairs) <= _MOST_PAIRS else ():
            node = self.nodes[a]
            alike = node == self.nodes[b] and node in self.together
            if not alike or node not in shown:
                ranks = [rank for rank in world if self.nodes[rank] == node] if alike else [a, b]
                yield _row("-".join(map(str, ranks)), *(getattr(self, name)[a, b] for name in _MATRICES))
            if alike:
                shown.add(node)
        links = self.links
        several = links.kind == "nodes"
        yield _row("across" if several else '"auto"', links.alpha, links.lambda_, links.beta)
        if several and links.inner_beta:
            yield _row("inside", links.inner_alpha, links.inner_lambda, links.inner_beta)

    def _remarks(self) -> Iterator[str]:
        if self.together:
            yield "ranks outnumber the cores of their node: measured all at once, not pair by pair"
        mesh = np.not_equal.outer(self.nodes, self.nodes)
        for where, chosen in (("between nodes", mesh), ("inside a node", ~mesh)):
            beta = np.where(chosen, self.beta, np.nan)
            known = beta[~np.isnan(beta)]
            if known.size and known.max() > _FAR_APART * known.min():
                slow = sorted(int(rank) for rank in np.unravel_index(np.nanargmax(beta), beta.shape))
                yield f"pairs {where} differ by {known.max() / known.min():.1f} times; the slowest: {slow}"


def _row(name: str, alpha: float, latency: float, beta: float) -> tuple[str, str, str, str]:
    return name, format_seconds(alpha), format_seconds(latency), _speed(beta)


def _speed(beta: float) -> str:
    return f"{1e-9 / beta:.3g} GB/s" if beta else "no limit"


def _written(matrix: Matrix) -> list[list[float | None]]:
    return [[None if math.isnan(value) else value for value in row] for row in matrix.tolist()]


def _read(rows: Sequence[Sequence[Any]], world: int) -> Matrix:
    values = [[math.nan if value is None else _checked(value) for value in row] for row in rows]
    matrix = np.array(values, np.float64)
    if matrix.shape != (world, world) or world < 2 or np.isnan(matrix[0, 1:]).all():
        raise ValueError(f"a matrix is not of {world} ranks")
    return matrix


def _speeds(spec: str, values: Sequence[Any]) -> tuple[float, float]:
    _core.Codec(spec)  # raises where there is none
    encode, decode = values
    return _checked(encode), _checked(decode)


def _checked(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{value!r} is no time")
    return number
