"""Links as people write them: `switch:1Gbit,latency=0.5ms,overhead=50us`; to compute with, or to emulate."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError
from gpucomm.units import parse_seconds

__all__ = ["LinkSpec", "host_bound", "memory_bandwidth", "parse_emulated", "parse_model", "parse_spec"]

_KEYS = {
    "alpha": "alpha",
    "overhead": "alpha",
    "beta": "beta",
    "latency": "lambda_",
    "gamma": "gamma",
    "jitter": "jitter",
}
_RATE = re.compile(r"(\d+(?:\.\d*)?)\s*([kMGT]?)bit(?:/s)?", re.ASCII)
_BITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@dataclass(frozen=True)
class LinkSpec:
    """Links as described by a text.

    Attributes:
        links: what the cost model knows of them.
        half_duplex: both directions share a port (switch) or a link (chain).
        jitter: seconds; up to so much is added to the latency of each message.
        seed: of the jitter.
    """

    links: _core.Links
    half_duplex: bool = False
    jitter: float = 0.0
    seed: int = 0

    def arguments(self) -> dict[str, Any]:
        """The keywords that `gpucomm.Communicator` takes for them."""
        return {
            "links": self.links,
            "half_duplex": self.half_duplex,
            "jitter": self.jitter,
            "seed": self.seed,
        }

    @property
    def canonical(self) -> str:
        """A text that is the same for the same links, and reads as them."""
        model = self.links
        parts = [model.kind, f"overhead={model.alpha!r}s", f"beta={model.beta!r}s"]
        parts += [f"latency={model.lambda_!r}s", f"gamma={model.gamma!r}s"]
        parts += ["half"] if self.half_duplex else []
        return ",".join([*parts, f"jitter={self.jitter!r}s", f"seed={self.seed}"])


def parse_spec(text: str) -> LinkSpec:
    """The links of a text KIND[:RATE][,SETTING...].

    Args:
        text: KIND is switch or chain, RATE such as 1Gbit or 400Mbit (a second), a SETTING one of
            overhead=TIME (or alpha), latency=TIME, beta=TIME (a byte, instead of RATE), gamma=TIME (a byte
            reduced), jitter=TIME, seed=N and half.

    Returns:
        The links; what the text leaves out is as in `_core.Links()`.

    Raises:
        InvalidArgumentError: the kind or a setting is unknown or given twice, or a value is wrong.
    """
    head, *settings = [part.strip() for part in text.split(",")]
    kind, colon, rate = head.partition(":")
    values: dict[str, Any] = {"beta": _seconds_a_byte(text, rate.strip())} if colon else {}
    for setting in settings:
        name, value = _setting(text, setting)
        if name in values:
            raise InvalidArgumentError(f"links {text!r}: {setting!r} is given twice")
        values[name] = value
    beyond = {name: values.pop(name) for name in ("half_duplex", "jitter", "seed") if name in values}
    return LinkSpec(_core.Links(kind.strip(), **values), **beyond)


def parse_model(text: str) -> _core.Links:
    """The links of a text that the cost model can compute with: no jitter, full duplex.

    Raises:
        InvalidArgumentError: as `parse_spec`, or the text says more.
    """
    spec = parse_spec(text)
    if spec.half_duplex or spec.jitter:
        raise InvalidArgumentError(
            f"links {text!r}: the cost model knows neither half nor jitter; emulated links do"
        )
    return spec.links


def parse_emulated(text: str) -> LinkSpec:
    """The links of a text that can be emulated.

    Raises:
        InvalidArgumentError: as `parse_spec`, or there is no bandwidth, or a gamma.
    """
    spec = parse_spec(text)
    if ":" not in text and "beta" not in text:
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
    beta = spec.links.beta
    limit = memory_bandwidth() / 4
    if beta and world / beta <= limit:
        return ""
    wanted = f"{world / beta / 1e9:.3g} GB/s" if beta else "no limit"
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


def _seconds_a_byte(text: str, rate: str) -> float:
    found = _RATE.fullmatch(rate)
    if not found or not float(found[1]):
        raise InvalidArgumentError(
            f"links {text!r}: the bandwidth {rate!r} must be a number above 0 and kbit, Mbit, Gbit or Tbit"
            " (a second)"
        )
    return 8 / (float(found[1]) * _BITS[found[2]])


def _setting(text: str, setting: str) -> tuple[str, Any]:
    if setting == "half":
        return "half_duplex", True
    key, _, value = setting.partition("=")
    if key == "seed" and value.isascii() and value.isdigit() and int(value) < 1 << 64:
        return "seed", int(value)
    if key not in _KEYS:
        known = ", ".join(f"{key}=TIME" for key in _KEYS)
        raise InvalidArgumentError(
            f"links {text!r}: unknown setting {setting!r}; known: {known}, seed=N, half"
        )
    return _KEYS[key], parse_seconds(value)
