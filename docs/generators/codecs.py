"""The tables of codecs: their registry, their errors, their speeds."""

from __future__ import annotations

import json
import math
from statistics import median

import numpy as np

import gpucomm
from generators.markdown import table
from generators.results import RESULTS
from gpucomm import _core

__all__ = ["codec_errors", "codec_speeds", "codec_traits", "codecs"]

WORLD = 8  # whose sums "fixed" has room for
_BOUNDS = {
    "exact": "exact",
    "element": "relative to the element",
    "block": "relative to the largest of its block",
    "absolute": "absolute",
}


def codecs() -> str:
    """Returns the registry: every codec, how its spec is written, what it does."""
    rows = [(f"`{name}`", about["usage"], about["summary"]) for name, about in gpucomm.codecs.names().items()]
    return table(("codec", "spec", "what it does"), rows)


def codec_traits() -> str:
    """Returns what the engine reads of every codec."""
    rows = []
    for name, about in gpucomm.codecs.names().items():
        codec = _core.Codec(about["examples"][0])
        traits = codec.traits
        dtypes = [dtype for dtype in ("float64", "float32", "float16", "bfloat16") if codec.takes(dtype)]
        kept = {"keeps_nan": "NaN", "keeps_infinity": "Inf"}
        rows.append(
            (
                f"`{name}`",
                "any" if codec.takes("int32") else ", ".join(dtypes),
                _BOUNDS[traits["bound"]],
                traits["block"],
                "fixed" if traits["fixed_size"] else "variable",
                "yes" if traits["additive"] else "",
                ", ".join(word for trait, word in kept.items() if traits[trait]) or "refused",
            )
        )
    return table(("codec", "dtypes", "error", "block>", "size", "additive", "NaN and Inf kept"), rows)


def codec_errors() -> str:
    """Returns the errors on Gaussian data of deviation 1, as codecs report them, beside what they promise."""
    x = np.random.default_rng(0).standard_normal(1 << 18).astype(np.float32)
    most = float(np.abs(x).max())
    rows = []
    for spec in (spec for about in gpucomm.codecs.names().values() for spec in about["examples"]):
        codec = _core.Codec(gpucomm.codecs.agreed(spec, most, WORLD))
        max_abs, sum_sq = codec.error(x)
        bits = 8 * len(codec.encode(x)) / x.size
        rms = math.sqrt(sum_sq / x.size)
        rows.append(
            (f"`{codec.spec}`", f"{bits:.3f}", f"{rms:.2g}", f"{max_abs:.2g}", f"{codec.bound(most):.2g}")
        )
    return table(("codec", "bits per element>", "RMS error>", "largest error>", "promised>"), rows)


def codec_speeds(name: str) -> str:
    """What `benchmarks/codec_times.py` left in a file of this name: times of a memcpy over theirs."""
    rows = json.loads((RESULTS / f"{name}.json").read_text())
    plain = median(rows[0]["samples_s"]["encode"])
    lines = []
    for row in rows[1:]:
        times = [row["samples_s"].get(name) for name in ("encode", "decode", "decode_add")]
        lines.append([f"`{row['codec']}`", *(f"{plain / median(t):.2f}" if t else "" for t in times)])
    return table(("codec", "encode>", "decode>", "decode and add>"), lines)
