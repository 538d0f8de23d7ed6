"""The tables of algorithms: their registry, what the verifier counts, what the cost model says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gpucomm
from generators.markdown import table
from gpucomm import _core
from gpucomm.cost import cost

__all__ = ["algorithms", "coded_algorithms", "effort", "predictions"]

WORLD = 8
LINKS = {"alpha": 50e-6, "beta": 1 / 1.25e9}  # about what TCP makes of 10 Gbit/s Ethernet
SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "64 MiB": 64 << 20}
_LEAST_SEGMENT_BYTES, _MOST_SEGMENTS = 64 << 10, 256


def algorithms() -> str:
    """Returns the registry: every algorithm, what it offers, how it works, where it comes from."""
    rows = [
        (f"`{name}`", ", ".join(about["collectives"]), about["summary"], about["source"])
        for name, about in _known(coded=False).items()
    ]
    return table(("algorithm", "offers", "how", "source"), rows)


def coded_algorithms() -> str:
    """Returns those for calls with a codec, and what the verifier finds that is lost in them."""
    rows = []
    for collective, name in _offers(coded=True):
        found = [
            _core.verify(_core.build_plans(collective, name, WORLD, additive=additive))
            for additive in (False, True)
        ]
        lossy, errors = (
            " / ".join(dict.fromkeys(str(getattr(one, key)) for one in found))
            for key in ("lossy_passes", "encode_errors")
        )
        about = gpucomm.algorithms()[name]
        rows.append((f"`{name}`", collective, about["summary"], about["source"], lossy, errors))
    heading = f"encode errors, {WORLD} ranks (additive)>"
    return table(("algorithm", "collective", "how", "source", "lossy passes>", heading), rows)


def _known(coded: bool) -> dict[str, Any]:
    return {name: about for name, about in gpucomm.algorithms().items() if about["coded"] == coded}


def effort() -> str:
    """Returns what the verifier counts and the cost model adds up, per collective and algorithm."""
    rows = []
    for collective, name in _offers():
        plans = _core.build_plans(collective, name, WORLD)
        found = _core.verify(plans)
        most = max(found.sent) / plans[0].pieces
        rows.append(
            (
                collective,
                f"`{name}`",
                found.messages,
                found.rounds,
                f"{most:.3g} n",
                _formula(plans, "switch"),
                _formula(plans, "chain"),
            )
        )
    headings = ("collective", "algorithm", "messages>", "rounds>", "a rank sends at most>", "switch", "chain")
    return table(headings, rows)


def predictions() -> str:
    """Returns the predicted times of all_reduce in milliseconds, each with its best segment count."""
    rows = []
    for name, about in _known(coded=False).items():
        if "all_reduce" not in about["collectives"]:
            continue
        for kind in ("switch", "chain"):
            times = [_best(name, size, kind, about["segmented"]) for size in SIZES.values()]
            rows.append((f"`{name}`", kind, *(f"{1e3 * time:.3g} ({segments})" for time, segments in times)))
    return table(("algorithm", "links", *(f"{size}>" for size in SIZES)), rows)


def _offers(coded: bool = False) -> Iterator[tuple[str, str]]:
    known = _known(coded)
    order = dict.fromkeys(c for about in known.values() for c in about["collectives"])
    for collective in order:
        yield from ((collective, name) for name, about in known.items() if collective in about["collectives"])


def _formula(plans: list[_core.Plan], kind: str) -> str:
    """The time as multiples of alpha and n beta, exact where all pieces have one size (m = 1)."""
    offsets = plans[0].layout(plans[0].pieces << 10)
    overhead = _core.schedule(plans, offsets, _core.Links(kind, alpha=1.0, beta=0.0)).total_s
    bandwidth = _core.schedule(plans, offsets, _core.Links(kind, alpha=0.0, beta=1 / offsets[-1])).total_s
    return f"{overhead:.0f} &alpha; + {bandwidth:.3g} n&beta;"


def _best(name: str, size: int, kind: str, segmented: bool) -> tuple[float, int]:
    """The least time in seconds and its segments, among the counts that "auto" tries."""
    links = _core.Links(kind, **LINKS)
    counts = [1]
    while segmented and counts[-1] < _MOST_SEGMENTS and size >= 2 * counts[-1] * _LEAST_SEGMENT_BYTES:
        counts.append(2 * counts[-1])
    return min(
        (cost("all_reduce", name, world=WORLD, nbytes=size, links=links, segments=segments), segments)
        for segments in counts
    )
