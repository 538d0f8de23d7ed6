"""Links as people write them: `switch:1Gbit,latency=0.5ms,overhead=50us`; to compute with, or to emulate."""

from __future__ import annotations

import time
from typing import Any

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError
from gpucomm.links_spec import LinkSpec, restricted
from gpucomm.links_text import PLACES, Change, parse_change, parse_rate, parse_setting

__all__ = [
    "LinkSpec",
    "host_bound",
    "memory_bandwidth",
    "parse_emulated",
    "parse_model",
    "parse_spec",
    "restricted",
]


def parse_spec(text: str) -> LinkSpec:
    """The links of a text KIND[:RATE][,SETTING...].

    Args:
        text: KIND is switch, chain or nodes, RATE such as 1Gbit or 400Mbit (a second), a SETTING one of
            overhead=TIME (or alpha), latency=TIME, beta=TIME (a byte, instead of RATE), gamma=TIME (a byte
            reduced), jitter=TIME, seed=N, half; of=2x4 or of=3+1 (of nodes: their ranks, in order);
            rankN=RATE (chain: linkN, from rank N to the next; nodes: nodeN) for one that has its own;
            TIME=RATE and TIME:rankN=RATE for one that holds from then on.

    Returns:
        The links; what the text leaves out is as in `_core.Links()`.

    Raises:
        InvalidArgumentError: the kind or a setting is unknown or given twice, or a value is wrong.
    """
    head, *settings = [part.strip() for part in text.split(",")]
    kind, colon, rate = (part.strip() for part in head.partition(":"))
    if kind not in PLACES:
        _core.Links(kind)  # says so
    values: dict[Any, Any] = {"beta": 8 / parse_rate(text, rate)} if colon else {}
    changes: dict[Any, Change] = {}
    for setting in settings:
        change = parse_change(text, kind, setting)
        name, value = ((change.at, change.place), change) if change else parse_setting(text, setting)
        if name in values or name in changes:
            raise InvalidArgumentError(f"links {text!r}: {setting!r} is given twice")
        (changes if change else values)[name] = value
    if (kind == "nodes") != ("nodes" in values):
        raise InvalidArgumentError(
            f"links {text!r}: links between nodes, and no others, say which ranks these have, as in of=2x4"
        )
    beyond = {name: values.pop(name) for name in ("half_duplex", "jitter", "seed") if name in values}
    ordered = tuple(changes[name] for name in sorted(changes))
    return LinkSpec(_core.Links(kind, **values), **beyond, changes=ordered, text=text)


def parse_model(text: str, world: int | None = None) -> _core.Links:
    """The links of a text that the cost model can compute with: no jitter, full duplex, no script.

    Args:
        text: as of `parse_spec`.
        world: number of ranks; None: not known, then there must be no rates of single ranks, links or nodes.

    Raises:
        InvalidArgumentError: as `parse_spec`, the text says more, or it does not fit the world.
    """
    spec = parse_spec(text)
    if spec.half_duplex or spec.jitter or any(change.at for change in spec.changes):
        raise InvalidArgumentError(
            f"links {text!r}: the cost model knows neither half nor jitter nor rates that change; emulated"
            " links do"
        )
    if world is not None:
        spec.check(world)
        return spec.model(world)
    if spec.changes:
        raise InvalidArgumentError(f"links {text!r}: for single rates the number of ranks must be known")
    return spec.links


def parse_emulated(text: str) -> LinkSpec:
    """The links of a text that can be emulated.

    Raises:
        InvalidArgumentError: as `parse_spec`, or there is no bandwidth, or a gamma.
    """
    spec = parse_spec(text)
    if ":" not in text.partition(",")[0] and "beta" not in text:
        raise InvalidArgumentError(
            f"links {text!r} must name a bandwidth to be emulated, as in switch:1Gbit or chain:400Mbit"
        )
    if spec.links.gamma:
        raise InvalidArgumentError(
            f"links {text!r}: gamma can not be emulated, for the ranks really reduce; leave it out"
        )
    return spec


def host_bound(spec: LinkSpec, world: int) -> str:
    """Why emulated links are too fast for this machine, as a sentence, or "" where they are not.

    Args:
        spec: the links.
        world: number of ranks.
    """
    limit = memory_bandwidth() / 4
    phases = [betas for _, betas in spec.rates(world)]
    free = any(not beta for betas in phases for beta in betas)
    most = max(sum(1 / beta for beta in betas if beta) for betas in phases)
    if most <= limit and not free:
        return ""
    wanted = "no limit" if free else f"{most / 1e9:.3g} GB/s"
    return (
        f"emulated links of {world} ranks together want {wanted}, more than a quarter of this machine's"
        f" memory bandwidth ({limit / 1e9:.3g} GB/s):"
        " what is measured on them is the machine's, not the links'"
    )


def memory_bandwidth() -> float:
    """Bytes a second that one core copies from memory to memory; measured anew, some milliseconds."""
    import numpy as np

    source = np.ones(16 << 20, np.uint8)
    target = np.empty_like(source)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - start)
    return source.nbytes / best
