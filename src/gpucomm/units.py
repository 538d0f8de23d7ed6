"""Sizes and times as people write and read them."""

from __future__ import annotations

import math
import re

from gpucomm.errors import InvalidArgumentError

__all__ = ["format_seconds", "format_size", "parse_names", "parse_seconds", "parse_size", "parse_sizes"]

_POWERS = {"": 0, "K": 10, "M": 20, "G": 30}
_MOST_BYTES = 1 << 50  # offsets in messages are 64-bit numbers
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "ps": 1e-12}
_TIME = re.compile(r"(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*([a-zµ]*)")


def parse_size(text: str) -> int:
    """Bytes of "8", "1K", "64M" or "2G": K, M and G are 2^10, 2^20 and 2^30.

    Raises:
        InvalidArgumentError: it is not such a text, or 0, or more than 2^50 bytes.
    """
    found = re.fullmatch(r"(\d{1,99})([KMG]?)", text.strip().upper(), re.ASCII)
    nbytes = int(found[1]) << _POWERS[found[2]] if found else 0
    if not 0 < nbytes <= _MOST_BYTES:
        raise InvalidArgumentError(
            f"size {text!r} must be a whole number above 0, with K, M or G for 2^10, 2^20 or 2^30 bytes,"
            " and at most 2^50 bytes"
        )
    return nbytes


def parse_names(text: str) -> list[str]:
    """The names of a comma-separated list, each once, in the order given; blank ones are dropped."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def parse_sizes(text: str) -> list[int]:
    """Bytes of a comma-separated list of sizes, each once, in the order given.

    Raises:
        InvalidArgumentError: one is not a size, or there is none.
    """
    if not parse_names(text):
        raise InvalidArgumentError(f"sizes {text!r} must name at least one size, such as 1K,1M")
    return list(dict.fromkeys(parse_size(size) for size in parse_names(text)))


def format_size(nbytes: int) -> str:
    """The shortest exact text: "8 B", "1 KiB", "1020 B", "16 MiB"."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes and not nbytes % (1 << power):
            return f"{nbytes >> power} {unit}"
    return f"{nbytes} B"


def parse_seconds(text: str) -> float:
    """Seconds of "5us", "0.1ms", "1ns" or "0"; the units are s, ms, us, ns and ps.

    Raises:
        InvalidArgumentError: it is not such a text, or no float holds it.
    """
    found = _TIME.fullmatch(text.strip())
    if not found or (found[2] not in _SECONDS and (found[2] or float(found[1]))):
        raise InvalidArgumentError(f"time {text!r} must be a number with a unit: s, ms, us, ns or ps")
    seconds = float(found[1]) * _SECONDS.get(found[2], 0.0)
    if not math.isfinite(seconds):
        raise InvalidArgumentError(f"time {text!r} is beyond what a float holds")
    return seconds


def format_seconds(seconds: float) -> str:
    """Three digits in the unit that suits: "871 µs", "1.5 ms", "0 s"."""
    for unit in ("s", "ms", "µs", "ns", "ps"):
        if seconds >= _SECONDS[unit] * 0.9995:
            return f"{seconds / _SECONDS[unit]:.3g} {unit}"
    return "0 s"
