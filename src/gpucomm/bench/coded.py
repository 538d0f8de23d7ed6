"""Calls with a codec in the benchmark: which take it, and how far off a result may be."""

from __future__ import annotations

from gpucomm import _core
from gpucomm.bench.pattern import LARGEST
from gpucomm.errors import InvalidArgumentError

__all__ = ["check", "codec_of", "within"]

_ROUNDING = {2: 2.0**-8, 4: 2.0**-24, 8: 2.0**-53}  # by bytes of an element, bfloat16's for both of two


def check(codec: str, collective: str, dtype: str = "float32") -> None:
    """Says what is wrong before ranks are started.

    Raises:
        InvalidArgumentError: an unknown codec, one that does not take the dtype, or a collective without one.
    """
    if not _core.Codec(codec).takes(dtype):
        raise InvalidArgumentError(f"--codec {codec} does not take {dtype}")
    takers = dict.fromkeys(
        name for about in _core.algorithms().values() if about["coded"] for name in about["collectives"]
    )
    if collective not in takers:
        raise InvalidArgumentError(
            f"--codec {codec}: {collective} takes no codec; those that do: {', '.join(takers)}"
        )


def codec_of(algorithm: str, codec: str | None) -> str | None:
    """The codec, where the algorithm takes one: "auto", which may leave it, and those that code."""
    return codec if algorithm == "auto" or _core.algorithms()[algorithm]["coded"] else None


def within(codec: str, collective: str, algorithm: str, world: int, dtype: str, itemsize: int) -> float:
    """How far off the mean of the ranks' numbers a result may be: what encodings lose, and rounding.

    An element's error is at most as many of the codec's bound of the largest partial sum as encodings' errors
    add up in it, of "auto" in whichever algorithm it may take.
    """
    errors = max(
        (
            _core.verify(_core.build_plans(collective, name, world)).encode_errors
            for name, about in _core.algorithms().items()
            if about["coded"] and collective in about["collectives"] and algorithm in (name, "auto")
        ),
        default=0,
    )
    made, largest = _core.Codec(codec), float(LARGEST * world)
    if made.traits["needs_maximum"]:
        made = made.agreed(largest, world)
    return errors * made.bound(largest, dtype) + (world + 1) * _ROUNDING[itemsize] * LARGEST
