"""The parts of a text that describes links: rates, their changes, nodes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from gpucomm.errors import InvalidArgumentError
from gpucomm.units import parse_seconds

__all__ = ["PLACES", "Change", "parse_change", "parse_rate", "parse_setting"]

PLACES = {"switch": "rank", "chain": "link", "nodes": "node"}
_RATE = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*([kMGT]?)bit(?:/s)?", re.ASCII)
_BITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_PLACE = re.compile(r"(rank|link|node)(\d{1,6})", re.ASCII)
_MOST_RANKS = 1 << 16
_KEYS = {
    "alpha": "alpha",
    "overhead": "alpha",
    "beta": "beta",
    "latency": "lambda_",
    "gamma": "gamma",
    "jitter": "jitter",
}
# what may change with time, beside the rates
_SCRIPTED = {"alpha": "overhead", "lambda_": "latency", "jitter": "jitter"}


@dataclass(frozen=True)
class Change:
    """What holds from some time on.

    Attributes:
        at: seconds since the links were made.
        what: "rate", or "alpha", "lambda_" or "jitter", which no place has of its own.
        place: the number of the rank, link or node that has the rate; -1: all that have none of their own.
        value: bits a second, or seconds.
    """

    at: float
    what: str
    place: int
    value: float

    def text(self, kind: str) -> str:
        """As in a description of links of this kind."""
        time = f"{self.at!r}s" if self.at else ""
        name = f"{PLACES[kind]}{self.place}" if self.place >= 0 else _SCRIPTED.get(self.what, "")
        unit = "bit" if self.what == "rate" else "s"
        return f"{time}{':' if time and name else ''}{name}={self.value!r}{unit}"


def parse_rate(text: str, rate: str) -> float:
    """Bits a second of "1Gbit" or "400Mbit/s"; `text` is the description that it is from.

    Raises:
        InvalidArgumentError: it is not such a rate, or 0, or no float holds it.
    """
    found = _RATE.fullmatch(rate)
    if not found or not float(found[1]):
        raise InvalidArgumentError(
            f"links {text!r}: the bandwidth {rate!r} must be a number above 0 and kbit, Mbit, Gbit or Tbit"
            " (a second)"
        )
    bits = float(found[1]) * _BITS[found[2]]
    if math.isinf(bits) or math.isinf(8 / bits):
        raise InvalidArgumentError(f"links {text!r}: the bandwidth {rate!r} is beyond what a float holds")
    return bits


def parse_change(text: str, kind: str, setting: str) -> Change | None:
    """The change of "rank2=1Gbit", "5s:rank2=1Gbit" or "5s:latency=2ms"; None: it is another setting.

    Args:
        text: the description that it is from.
        kind: of the links.
        setting: a part of the text.

    Raises:
        InvalidArgumentError: the value or the time is wrong, or links of this kind have no such places.
    """
    key, _, value = setting.partition("=")
    time, colon, name = key.rpartition(":")
    if not colon and key[:1].isdigit():
        time, name = key, ""
    name = name.strip()
    place, scripted = _PLACE.fullmatch(name), bool(time) and _KEYS.get(name) in _SCRIPTED
    if not place and not scripted and (name or not time):
        return None
    if place and place[1] != PLACES.get(kind):
        raise InvalidArgumentError(
            f"links {text!r}: {setting!r} names a {place[1]}, but of a {kind} each {PLACES.get(kind)} has a"
            " rate of its own"
        )
    at = parse_seconds(time) if time else 0.0
    if time and not at:
        raise InvalidArgumentError(
            f"links {text!r}: {setting!r} must name a time above 0; what holds from the start has none"
        )
    if scripted:
        return Change(at, _KEYS[name], -1, parse_seconds(value))
    return Change(at, "rate", int(place[2]) if place else -1, parse_rate(text, value.strip()))


def _parse_nodes(text: str, sizes: str) -> list[int]:
    """The node of each rank, for 2x4 (NODESxRANKS) or 3+1 (the number of ranks of each node).

    Args:
        text: the description that it is from.
        sizes: as above.

    Raises:
        InvalidArgumentError: it is neither, or of more than 65536 ranks.
    """
    if found := re.fullmatch(r"(\d{1,6})x(\d{1,6})", sizes, re.ASCII):
        counts = [int(found[2])] * int(found[1])
    elif re.fullmatch(r"\d{1,6}(\+\d{1,6})*", sizes, re.ASCII):
        counts = [int(size) for size in sizes.split("+")]
    else:
        counts = []
    if not counts or 0 in counts or sum(counts) > _MOST_RANKS:
        raise InvalidArgumentError(
            f"links {text!r}: of={sizes!r} must be NODESxRANKS, as in 2x4, or the number of ranks of each"
            f" node, as in 3+1, of at most {_MOST_RANKS} ranks"
        )
    return [node for node, count in enumerate(counts) for _ in range(count)]


def parse_setting(text: str, setting: str) -> tuple[str, Any]:
    """The attribute and the value of "latency=5us", "half", "seed=3" or "of=2x4".

    Args:
        text: the description that it is from.
        setting: a part of the text.

    Raises:
        InvalidArgumentError: it is unknown, or its value is wrong.
    """
    if setting == "half":
        return "half_duplex", True
    key, _, value = setting.partition("=")
    if key == "seed" and value.isascii() and value.isdigit() and len(value) <= 20 and int(value) < 1 << 64:
        return "seed", int(value)
    if key == "of":
        return "nodes", _parse_nodes(text, value.strip())
    if key not in _KEYS:
        known = ", ".join(f"{key}=TIME" for key in _KEYS)
        raise InvalidArgumentError(
            f"links {text!r}: unknown setting {setting!r}; known: {known}, seed=N, half, of=NODESxRANKS,"
            " rankN=RATE (of a chain linkN, of nodes nodeN), TIME=RATE, TIME:rankN=RATE, TIME:latency=TIME"
            " (so overhead, jitter)"
        )
    return _KEYS[key], parse_seconds(value)
