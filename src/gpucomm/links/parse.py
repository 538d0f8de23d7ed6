"""Reading links as people write them."""

from __future__ import annotations

from typing import Any

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError
from gpucomm.links.spec import LinkSpec
from gpucomm.links.text import PLACES, Change, parse_change, parse_rate, parse_setting

__all__ = ["parse_emulated", "parse_model", "parse_spec"]


def parse_spec(text: str) -> LinkSpec:
    """The links of a text KIND[:RATE][,SETTING...].

    Args:
        text: KIND is switch, chain or nodes, RATE such as 1Gbit or 400Mbit (a second), a SETTING one of
            overhead=TIME (or alpha), latency=TIME, beta=TIME (a byte, instead of RATE), gamma=TIME (a byte
            reduced), jitter=TIME, seed=N, half; of=2x4 or of=3+1 (of nodes: their ranks, in order);
            rankN=RATE (chain: linkN, from rank N to the next; nodes: nodeN) for one that has its own;
            TIME=RATE and TIME:rankN=RATE for one that holds from then on, and so TIME:overhead=TIME,
            TIME:latency=TIME and TIME:jitter=TIME.

    Returns:
        The links; what the text leaves out is as in `_core.Links()`.

    Raises:
        InvalidArgumentError: the kind or a setting is unknown or given twice, or a value is wrong.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"links must be a text such as 'switch:1Gbit', got {_core.shown(text)}")
    text = text.encode(errors="backslashreplace").decode()  # any str may be asked for
    head, *settings = [part.strip() for part in text.split(",")]
    kind, colon, rate = (part.strip() for part in head.partition(":"))
    if kind not in PLACES:
        _core.Links(kind)  # says so
    values: dict[Any, Any] = {"beta": 8 / parse_rate(text, rate)} if colon else {}
    changes: dict[Any, Change] = {}
    for setting in settings:
        change = parse_change(text, kind, setting)
        name, value = (
            ((change.at, change.what, change.place), change) if change else parse_setting(text, setting)
        )
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
            f"links {text!r}: the cost model knows neither half nor jitter nor what changes later; emulated"
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
            f"links {text!r}: gamma cannot be emulated, for the ranks really reduce; leave it out"
        )
    return spec
