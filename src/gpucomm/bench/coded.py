"""Calls with a codec in the benchmark: which take it, and how far off a result may be."""

from __future__ import annotations

from gpucomm import _core
from gpucomm.bench.pattern import LARGEST
from gpucomm.error_bounds import ROUNDING
from gpucomm.errors import InvalidArgumentError

__all__ = ["check", "codec_of", "takers", "within"]

_ROUNDING = ROUNDING | {"float64": 2.0**-53}


def takers() -> list[str]:
    """The collectives that take a codec."""
    coded = (about["collectives"] for about in _core.algorithms().values() if about["coded"])
    return list(dict.fromkeys(name for names in coded for name in names))


def check(codec: str, collective: str, dtype: str = "float32") -> None:
    """Says what is wrong before ranks are started.

    Raises:
        InvalidArgumentError: an unknown codec, one that does not take the dtype, a dtype whose means are
            rounded to whole numbers, or a collective without a codec.
    """
    if not _core.Codec(codec).takes(dtype):
        raise InvalidArgumentError(f"--codec {codec} does not take {dtype}")
    if dtype not in _ROUNDING:
        raise InvalidArgumentError(f"--codec {codec} is measured of {', '.join(_ROUNDING)}, not of {dtype}")
    if collective not in takers():
        raise InvalidArgumentError(
            f"--codec {codec}: {collective} takes no codec; those that do: {', '.join(takers())}"
        )


def codec_of(algorithm: str, codec: str | None) -> str | None:
    """The codec, where the algorithm takes one: "auto", which may leave it, and those that code."""
    return codec if algorithm == "auto" or _core.algorithms()[algorithm]["coded"] else None


def within(codec: str, collective: str, algorithm: str, world: int, dtype: str) -> float:
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
    return errors * made.bound(largest, dtype) + (world + 1) * _ROUNDING[dtype] * LARGEST
