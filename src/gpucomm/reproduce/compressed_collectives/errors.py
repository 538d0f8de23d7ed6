"""What coded collectives lose: against the bound that the verifier and the codec give, and on the average."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from gpucomm import _core
from gpucomm.comm import Communicator
from gpucomm.reproduce.claims import Outcome, Row
from gpucomm.reproduce.pictures import Curve, Picture
from gpucomm.reproduce.run import Cell, Run

__all__ = ["error_bound"]

_CLAIM = "error_bound"
_COUNT = 1 << 14  # elements of a part
_EPS = 2.0**-9  # of "fixed": half its step
_FIXED = f"fixed:{_EPS!r}"
_ROUNDING = 2.0**-22  # of sums of float32, relative, beside which a bound of zero may stand
_WITHIN = 0.05
_LINKS = (1e9, 5e-6)  # bytes a second and alpha: nothing is timed


class _Setting(NamedTuple):
    collective: str
    algorithm: str
    codec: str


def error_bound(run: Run) -> Outcome:
    """How far errors are from their bounds, for every codec and plan; and their RMS beside the formulas."""
    worlds = (4,) if run.quick else (2, 4, 8)
    rows = [_bound_row(run, world) for world in worlds]
    rows += [_bits_row(run, worlds[-1])]
    rms = {world: _rms(run, world) for world in ((2, 4) if run.quick else (2, 3, 4, 6, 8))}
    rows += [row for world in rms for row in _rms_rows(run, world, rms[world])]
    rows += _one_coding_rows(run)
    curves = []
    for index, name in enumerate(("fixed", "int8")):
        curves.append(Curve(name, list(rms), [found[name][0] for found in rms.values()], like=2 * index))
        formula = [found[name][1] for found in rms.values()]
        curves.append(Curve(f"{name}, the formula", list(rms), formula, model=True, like=2 * index))
    title = "All-reduce by coded_ring: RMS error over that of one coding"
    return Outcome(rows, Picture(title, "ranks N", "RMS / RMS of one coding", curves))


def _settings() -> Iterator[_Setting]:
    specs = [spec for about in _core.codecs().values() for spec in about["examples"]]
    for name, about in _core.algorithms().items():
        if about["coded"]:
            yield from (_Setting(which, name, spec) for which in about["collectives"] for spec in specs)


def _cell(world: int) -> Cell:
    rate, alpha = _LINKS
    nbytes = 4 * _COUNT * world
    return Cell("switch", nbytes, nbytes / rate / alpha, alpha)


def _on_ranks(run: Run, world: int, *settings: _Setting) -> list[list[dict[str, Any]]]:
    """Of each setting what each rank found."""
    found = run.on_ranks(_cell(world), world, _find, settings)
    return [list(some) for some in zip(*found, strict=True)]


def _find(comm: Communicator, settings: list[_Setting]) -> list[dict[str, Any]]:
    """Of each setting, on Gaussian data: the largest error, their RMS, the bound, the result's bits."""
    return [_errors(comm, *setting) for setting in settings]


def _errors(comm: Communicator, collective: str, algorithm: str, codec: str) -> dict[str, Any]:
    import hashlib

    import numpy as np

    from gpucomm import codecs

    count = _COUNT * (comm.world if collective == "reduce_scatter" else 1)
    all_ = np.stack([np.random.default_rng(r).standard_normal(count, np.float32) for r in range(comm.world)])
    given = all_[comm.rank].copy()
    result = getattr(comm, collective)(given, codec=codec, algorithm=algorithm, segments=1)
    exact, magnitudes = all_.sum(0, np.float64), np.abs(all_).sum(0, np.float64)
    if collective == "all_gather":
        exact, magnitudes = all_.reshape(-1).astype(np.float64), np.abs(all_).reshape(-1)
    if collective == "reduce_scatter":
        mine = slice(comm.rank * _COUNT, (comm.rank + 1) * _COUNT)
        exact, magnitudes = exact[mine], magnitudes[mine]
    concrete = _core.Codec(codecs.agreed(codec, float(np.abs(all_).max()), comm.world))
    off = np.abs(result - exact)
    return {
        "largest": float(off.max()),
        "rms": float(np.sqrt(np.mean(off**2))),
        "bound": _bound(collective, algorithm, concrete, comm.world, float(magnitudes.max())),
        "bits": hashlib.sha256(result.tobytes()).hexdigest(),
    }


def _bound(collective: str, algorithm: str, codec: _core.Codec, world: int, most: float) -> float:
    """Encodings whose errors add up, times the codec's bound of the largest partial sum, errors included."""
    additive = bool(codec.traits["additive"])
    plans = _core.build_plans(collective, algorithm, world, additive=additive)
    encodings = _core.verify(plans).encode_errors
    sum_ = most
    for _ in range(encodings - 1):
        sum_ += codec.bound(sum_)
    return encodings * codec.bound(sum_) + _ROUNDING * most


def _bound_row(run: Run, world: int) -> Row:
    """How many settings break their bound; the samples: error over bound, by plan, of every codec."""
    settings = list(_settings())
    run.tell(f"errors of {len(settings)} coded collectives, {world} ranks")
    samples: dict[str, list[float]] = {}
    for setting, by_rank in zip(settings, _on_ranks(run, world, *settings), strict=True):
        share = max(found["largest"] / found["bound"] for found in by_rank)
        samples.setdefault(f"{setting.collective}, {setting.algorithm}", []).append(share)
    shares = [share for some in samples.values() for share in some]
    text = (
        f"of {len(settings)} settings (every codec and coded plan) those whose largest error is above encode"
        f" errors x the codec's bound of the largest partial sum; the closest has {max(shares):.2f} of it"
    )
    broken = float(sum(share > 1 for share in shares))
    figures = (0.0, broken, "settings", "counted", "==", 0.0)
    return Row(_CLAIM, *figures, _setting(run, world), samples, text)


def _bits_row(run: Run, world: int) -> Row:
    """How many all-reduces and all-gathers leave ranks with different bits."""
    settings = [
        some
        for some in _settings()
        if some.collective != "reduce_scatter" and some.algorithm != "ring_per_hop"
    ]
    different = [
        float(len({found["bits"] for found in by_rank})) for by_rank in _on_ranks(run, world, *settings)
    ]
    text = (
        f"of {len(settings)} settings those whose ranks have different bits; samples: how many different "
        "results; all but ring_per_hop, which codes anew at each hop"
    )
    broken = float(sum(n > 1 for n in different))
    figures = (0.0, broken, "settings with different bits", "counted", "==", 0.0)
    return Row(_CLAIM, *figures, _setting(run, world), {"results": different}, text)


def _rms(run: Run, world: int) -> dict[str, tuple[float, float]]:
    """By codec, of an all-reduce by coded_ring: the RMS over that of one coding, and the formula's."""
    settings = [_Setting("all_reduce", "coded_ring", codec) for codec in (_FIXED, "int8")]
    fixed, int8 = ([found["rms"] for found in by_rank] for by_rank in _on_ranks(run, world, *settings))
    return {
        "fixed": (max(fixed) / (_EPS / 3**0.5), world**0.5),
        "int8": (max(int8) / _one_coding("int8"), (world * (world + 1) / 2) ** 0.5),
    }


def _rms_rows(run: Run, world: int, found: dict[str, tuple[float, float]]) -> Iterator[Row]:
    """How far the RMS is off the formula."""
    for name, form, note in (
        ("fixed", "eps sqrt(N/3)", "one step for all: each rank's operand is quantised once"),
        ("int8", "sqrt(N(N+1)/2) times one coding", "the step grows with the partial sums, so as sqrt(N)"),
    ):
        ours, formula = found[name]
        text = f"{name}, all-reduce by coded_ring, {ours:.3f} times one coding; the formula: {form}; {note}"
        figures = (None, abs(ours / formula - 1), "RMS error off the formula", "measured", "<=", _WITHIN)
        yield Row(_CLAIM, *figures, _setting(run, world), {"measured": [ours], "formula": [formula]}, text)


def _one_coding(codec: str) -> float:
    """The RMS error of coding Gaussian data of deviation 1 once."""
    import numpy as np

    x = np.random.default_rng(0).standard_normal(1 << 18, np.float32)
    return float((_core.Codec(codec).error(x)[1] / x.size) ** 0.5)


def _one_coding_rows(run: Run) -> Iterator[Row]:
    """What eight times fewer bytes lose."""
    for codec, goal, note in (
        ("int4", 0.12, "int4 in blocks of 128"),
        ("zfp:4", None, "noise: zfp expects neighbours to resemble each other"),
    ):
        found = _one_coding(codec)
        bits = 8 * _core.Codec(codec).max_bytes(1 << 18) / (1 << 18)
        figures = (None, found, "RMS error of one coding, relative", "measured", "<=", goal)
        text = f"{note}; {bits:.3f} bits an element, Gaussian data"
        yield Row(_CLAIM, *figures, _setting(run, 1), {codec: [found]}, text)


def _setting(run: Run, world: int) -> dict[str, Any]:
    return run.setting(_cell(world), world, repeats=1)
