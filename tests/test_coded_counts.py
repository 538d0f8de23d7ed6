"""Coded collectives of uneven counts, of nothing and of little; and how many pieces they count as coded."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from codec_samples import CODECS, usable
from conftest import pairs
from ranks import run_ranks
from test_coded import contribution, errors
from test_uneven import cut, uneven

from gpucomm import Communicator, _core

CODED = pairs(coded=True)
BY_RANK = pairs("all_gather", "reduce_scatter", coded=True)
LOSSY = [spec for spec in CODECS if _core.Codec(spec).traits["lossy"]]


def counts_of(world: int) -> list[list[int]]:
    """No multiples of a block; then nothing but on the last rank; then nothing."""
    return [uneven(world, 1), uneven(world, 333), [0] * (world - 1) + [1000], [0] * world]


@pytest.mark.parametrize(("collective", "algorithm"), BY_RANK)
@pytest.mark.parametrize("spec", LOSSY)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_uneven_counts(collective: str, algorithm: str, spec: str, world: int) -> None:
    def body(comm: Communicator) -> list[Any]:
        how = {"codec": spec, "algorithm": algorithm}
        results = []
        for counts in counts_of(world):
            for segments in (1, 3):
                size = counts[comm.rank] if collective == "all_gather" else sum(counts)
                x = contribution(comm.rank, size)
                results.append(getattr(comm, collective)(x, counts=counts, segments=segments, **how))
        return results

    codec = usable(spec, world=world)
    lost = errors(collective, algorithm, world, codec.traits["additive"]) if world > 1 else 0
    for rank, results in enumerate(run_ranks(world, body)):
        for i, result in enumerate(results):
            counts = counts_of(world)[i // 2]
            if collective == "all_gather":
                given = np.concatenate([contribution(r, n) for r, n in enumerate(counts)])[None]
            else:
                given = np.stack([cut(contribution(r, sum(counts)), counts)[rank] for r in range(world)])
            assert result.shape == given[0].shape
            largest = float(np.abs(given).astype(np.float64).sum(0).max(initial=0.0))
            bound = lost * codec.bound(1.5 * largest, "float32") + 1e-6
            assert np.abs(result - given.astype(np.float64).sum(0)).max(initial=0.0) <= bound


@pytest.mark.parametrize("algorithm", ["coded_ring", "two_shot"])
@pytest.mark.parametrize("spec", LOSSY)
@pytest.mark.parametrize("segments", [1, 3])
def test_a_gathered_part_is_coded_from_its_own_beginning(algorithm: str, spec: str, segments: int) -> None:
    """Its blocks are its rank's own, whatever comes before it, and all ranks have the same bits."""
    world, counts = 4, [333, 0, 1000, 129]

    def body(comm: Communicator) -> bytes:
        x = contribution(comm.rank, counts[comm.rank])
        how = {"codec": spec, "algorithm": algorithm, "segments": segments}
        return comm.all_gather(x, counts=counts, **how).tobytes()

    given = [contribution(r, n) for r, n in enumerate(counts)]
    codec = usable(spec, max(float(np.abs(x).max(initial=0)) for x in given), world)
    expected = [np.zeros_like(x) for x in given]
    for x, became in zip(given, expected, strict=True):
        codec.decode(codec.encode(x), became)
    assert run_ranks(world, body) == [np.concatenate(expected).tobytes()] * world


@pytest.mark.parametrize(("collective", "algorithm"), CODED)
@pytest.mark.parametrize("spec", CODECS)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_nothing_and_one_element(collective: str, algorithm: str, spec: str, world: int) -> None:
    def body(comm: Communicator) -> list[Any]:
        results = []
        for count in (0, 1, 0):
            size = count * (comm.world if collective == "reduce_scatter" else 1)
            x = contribution(comm.rank, size)
            for segments in (1, 2):
                how = {"codec": spec, "algorithm": algorithm, "segments": segments}
                results.append(getattr(comm, collective)(x.copy(), **how))
        comm.barrier()
        return results

    codec = usable(spec, world=world)
    lost = errors(collective, algorithm, world, codec.traits["additive"]) if world > 1 else 0
    for rank, results in enumerate(run_ranks(world, body)):
        for i, result in enumerate(results):
            count = (0, 1, 0)[i // 2]
            if collective == "all_gather":
                exact = np.concatenate([contribution(r, count) for r in range(world)])
            elif collective == "reduce_scatter":
                exact = sum(contribution(r, count * world)[rank * count :][:count] for r in range(world))
            else:
                exact = sum(contribution(r, count) for r in range(world))
            assert result.shape == exact.shape
            bound = lost * codec.bound(8.0, "float32") + 1e-6
            assert np.abs(result - exact).max(initial=0.0) <= bound


def codings(collective: str, algorithm: str, world: int, segments: int, additive: bool) -> list[Any]:
    """By rank: the encodings and decodings in its plan, which the verifier has followed."""
    in_place = collective == "all_reduce"
    plans = _core.build_plans(
        collective, algorithm, world, segments=segments, in_place=in_place, additive=additive
    )
    _core.verify(plans)
    found = []
    for plan in plans:
        kinds = Counter(step.kind for step in plan.steps)
        found.append((kinds["encode"], kinds["decode"] + kinds["decode_reduce"]))
    return found


def counted(comm: Communicator, collective: str, count: int, **how: Any) -> tuple[int, int]:
    before = comm.stats()
    getattr(comm, collective)(contribution(comm.rank, count), **how)
    after = comm.stats()
    return after["encodes"] - before["encodes"], after["decodes"] - before["decodes"]


@pytest.mark.parametrize(("collective", "algorithm"), CODED)
@pytest.mark.parametrize("spec", ["int8", "mpc", "fixed:0.001"])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_what_is_counted_is_what_the_plan_codes(
    collective: str, algorithm: str, spec: str, world: int
) -> None:
    def body(comm: Communicator) -> list[tuple[int, int]]:
        how = {"codec": spec, "algorithm": algorithm}
        return [counted(comm, collective, 10_000 * world, segments=n, **how) for n in (1, 2, 5)]

    additive = _core.Codec(spec).traits["additive"]
    each = (1, 2, 5) if _core.algorithms()[algorithm]["segmented"] else (1, 1, 1)
    planned = [codings(collective, algorithm, world, n, additive) for n in each]
    assert run_ranks(world, body) == list(map(list, zip(*planned, strict=True)))


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("algorithm", ["coded_ring", "two_shot"])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_an_element_is_coded_as_often_as_its_plan_says_it_loses(
    collective: str, algorithm: str, world: int
) -> None:
    """The verifier counts how many encodings' errors are in a result: these, of all ranks together."""
    segments = 3

    def body(comm: Communicator) -> tuple[int, int]:
        how = {"codec": "int8", "algorithm": algorithm, "segments": segments}
        return counted(comm, collective, 10_000 * world, **how)

    verified = _core.verify(
        _core.build_plans(collective, algorithm, world, segments=segments, in_place=False)
    )
    pieces = world * segments
    assert sum(encodes for encodes, _ in run_ranks(world, body)) == pieces * verified.encode_errors


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("algorithm", ["coded_ring", "two_shot"])
@pytest.mark.parametrize("spec", ["int8", "mpc"])
def test_empty_pieces_are_not_counted(collective: str, algorithm: str, spec: str) -> None:
    """As on devices: a piece of no elements is no work."""
    world, counts = 3, [0, 700, 0]

    def body(comm: Communicator) -> tuple[tuple[int, int], tuple[int, int]]:
        how: dict[str, Any] = {"codec": spec, "algorithm": algorithm, "segments": 1}
        size = counts[comm.rank] if collective == "all_gather" else sum(counts)
        some = counted(comm, collective, size, counts=counts, **how)
        return some, counted(comm, collective, 0, **how)

    gathers = collective == "all_gather"
    for rank, (some, none) in enumerate(run_ranks(world, body)):
        plan = _core.build_plan(collective, algorithm, world, rank, segments=1, in_place=False)
        of_one = Counter(step.kind for step in plan.steps if step.piece == 1)
        decodes = of_one["decode"] + of_one["decode_reduce"]
        assert some == (of_one["encode"], decodes)
        assert sum(some) > 0 or not gathers
        assert none == (0, 0)
