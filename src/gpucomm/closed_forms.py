"""What the papers promise that a collective costs, as closed forms.

Symbols as in the papers: p ranks, n bytes, m segments, alpha seconds a message, beta seconds a byte. Where a
form does not name the latency lambda, it is for lambda = 0. All links are alike: rates of single ranks do not
count.
"""

from __future__ import annotations

import math
from typing import Any

from gpucomm import _core
from gpucomm.comm import is_whole
from gpucomm.errors import InvalidArgumentError

__all__ = [
    "bidirectional_exchange",
    "binomial_tree",
    "check_message",
    "linear_pipeline",
    "linear_pipeline_fused",
    "linear_pipeline_middle",
    "linear_pipeline_unfused",
    "ring",
]


def check_message(nbytes: Any, links: Any) -> None:
    """Raises InvalidArgumentError unless these are the bytes of a message and a model of links."""
    if not is_whole(nbytes):
        raise InvalidArgumentError(f"nbytes must be a whole number of 64 bits, got {nbytes!r}")
    if nbytes < 0:
        raise InvalidArgumentError(f"nbytes={nbytes} must not be negative")
    if not isinstance(links, _core.Links):
        raise InvalidArgumentError(
            f"links must be a model of the links, as gpucomm.links.parse_model makes one, got {links!r}"
        )


def _check(least: int, p: Any, nbytes: Any, links: Any, m: Any = 1) -> None:
    """Checks the arguments of a closed form, which is for `least` ranks or more."""
    for name, value, low in (("p", p, least), ("m", m, 1)):
        if not is_whole(value) or value < low:
            raise InvalidArgumentError(f"{name} must be a whole number of at least {low}, got {value!r}")
    check_message(nbytes, links)


def linear_pipeline(p: int, m: int, nbytes: int, links: _core.Links) -> float:
    """Broadcast or reduce along a chain: (p-2+m)(alpha + n/m beta) + (p-1) lambda, for any lambda.

    Source: Linear Pipelining, arXiv:1611.04255, whose table counts one step more, p-1+m.

    Args:
        p: number of ranks, at least 2.
        m: segments, at least 1.
        nbytes: the whole message.
        links: the model of the links.

    Returns:
        Seconds.

    Raises:
        InvalidArgumentError: a number is out of range, or an argument of another type.
    """
    _check(2, p, nbytes, links, m)
    return float((p - 2 + m) * (links.alpha + nbytes / m * links.beta) + (p - 1) * links.lambda_)


def linear_pipeline_fused(p: int, m: int, nbytes: int, links: _core.Links) -> float:
    """All-reduce down a chain and back at once: (2p-3+m)(alpha + n/m beta); on links="chain" only.

    Each neighbour pair needs its own full-duplex link. Source: derived from arXiv:1611.04255.

    Args:
        p: number of ranks, at least 2.
        m: segments, at least 1.
        nbytes: the whole message.
        links: the model of the links.

    Returns:
        Seconds.

    Raises:
        InvalidArgumentError: a number is out of range, or an argument of another type.
    """
    _check(2, p, nbytes, links, m)
    return float((2 * p - 3 + m) * (links.alpha + nbytes / m * links.beta))


def linear_pipeline_middle(p: int, m: int, nbytes: int, links: _core.Links) -> float:
    """All-reduce from both ends to the middle and back at once: (2h-1+m)(alpha + n/m beta), h = floor(p/2).

    On links="chain" only, as `linear_pipeline_fused`.

    Args:
        p: number of ranks, at least 2.
        m: segments, at least 1.
        nbytes: the whole message.
        links: the model of the links.

    Returns:
        Seconds.

    Raises:
        InvalidArgumentError: a number is out of range, or an argument of another type.
    """
    _check(2, p, nbytes, links, m)
    return float((2 * (p // 2) - 1 + m) * (links.alpha + nbytes / m * links.beta))


def linear_pipeline_unfused(p: int, m: int, nbytes: int, links: _core.Links) -> float:
    """All-reduce as a whole reduce, then a whole broadcast: twice the chain. Source: arXiv:1611.04255.

    Args:
        p: number of ranks, at least 2.
        m: segments, at least 1.
        nbytes: the whole message.
        links: the model of the links.

    Returns:
        Seconds.

    Raises:
        InvalidArgumentError: a number is out of range, or an argument of another type.
    """
    return 2 * linear_pipeline(p, m, nbytes, links)


def ring(p: int, nbytes: int, links: _core.Links) -> float:
    """All-reduce round a ring: 2(p-1)(alpha + n/p beta), one segment. Source: Patarasuk & Yuan 2009.

    Args:
        p: number of ranks, at least 1.
        nbytes: the whole message.
        links: the model of the links.

    Returns:
        Seconds.

    Raises:
        InvalidArgumentError: a number is out of range, or an argument of another type.
    """
    _check(1, p, nbytes, links)
    return float(2 * (p - 1) * (links.alpha + nbytes / p * links.beta))


def binomial_tree(p: int, nbytes: int, links: _core.Links) -> float:
    """Broadcast or reduce over a tree (MST): ceil(log2 p)(alpha + n beta). Source: arXiv:1611.04255.

    Args:
        p: number of ranks, at least 1.
        nbytes: the whole message.
        links: the model of the links.

    Returns:
        Seconds.

    Raises:
        InvalidArgumentError: a number is out of range, or an argument of another type.
    """
    _check(1, p, nbytes, links)
    return float(int(p - 1).bit_length() * (links.alpha + nbytes * links.beta))


def bidirectional_exchange(p: int, nbytes: int, links: _core.Links) -> float:
    """All-reduce by halving and doubling (BE): 2 log2 p alpha + 2(p-1)/p n beta, on links="switch".

    Source: arXiv:1611.04255; Rabenseifner 2004.

    Args:
        p: number of ranks, a power of two.
        nbytes: the whole message.
        links: the model of the links.

    Returns:
        Seconds.

    Raises:
        InvalidArgumentError: a number is out of range, or an argument of another type.
    """
    _check(1, p, nbytes, links)
    if p & (p - 1):
        raise InvalidArgumentError(f"p must be a power of two, got {p}")
    return float(2 * math.log2(p) * links.alpha + 2 * (p - 1) / p * nbytes * links.beta)
