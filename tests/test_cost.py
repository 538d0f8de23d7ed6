"""The cost model gives the papers' closed forms: the plan that runs is the algorithm of the paper."""

from __future__ import annotations

import math

import pytest

from gpucomm import _core
from gpucomm import cost as c
from gpucomm.errors import InvalidArgumentError

ALPHA, BETA = 5e-6, 1e-9
EVEN = 64 * 840 * 32  # bytes: cut evenly, on cache lines, by every world to 8 and every m that divides 32


def links(kind: str, latency: float = 0.0) -> _core.Links:
    return _core.Links(kind, alpha=ALPHA, beta=BETA, lambda_=latency)


def exactly(expected: float) -> object:
    return pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", ["switch", "chain"])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("world", [2, 3, 4, 5, 7, 8])
def test_linear_pipeline_is_the_papers_chain(kind, collective, world):
    model = links(kind, latency=3e-6)
    for m in (1, 2, 8, 32):
        got = c.cost(collective, "linear_pipeline", world=world, nbytes=EVEN, links=model, segments=m)
        by_hand = (world - 2 + m) * (ALPHA + EVEN / m * BETA) + (world - 1) * 3e-6
        assert got == exactly(by_hand)
        assert c.linear_pipeline(world, m, EVEN, model) == exactly(by_hand)


def test_any_root_costs_the_same_on_a_switch():
    for root in range(5):
        got = c.cost(
            "reduce", "linear_pipeline", world=5, nbytes=EVEN, links=links("switch"), root=root, segments=8
        )
        assert got == exactly(c.linear_pipeline(5, 8, EVEN, links("switch")))


def all_reduce(algorithm: str, kind: str, world: int, m: int = 1) -> float:
    return c.cost("all_reduce", algorithm, world=world, nbytes=EVEN, links=links(kind), segments=m)


@pytest.mark.parametrize("world", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("m", [1, 4, 32])
def test_fused_and_unfused_all_reduce(world, m):
    fused = all_reduce("linear_pipeline", "chain", world, m)
    assert fused == exactly((2 * world - 3 + m) * (ALPHA + EVEN / m * BETA))
    assert fused == exactly(c.linear_pipeline_fused(world, m, EVEN, links("chain")))
    for kind in ("switch", "chain"):
        unfused = all_reduce("linear_pipeline_unfused", kind, world, m)
        assert unfused == exactly(2 * (world - 2 + m) * (ALPHA + EVEN / m * BETA))
        assert unfused == exactly(c.linear_pipeline_unfused(world, m, EVEN, links(kind)))


@pytest.mark.parametrize("world", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("m", [1, 4, 32])
def test_meeting_in_the_middle_halves_the_fill(world, m):
    middle = all_reduce("linear_pipeline_middle", "chain", world, m)
    assert middle == exactly((2 * (world // 2) - 1 + m) * (ALPHA + EVEN / m * BETA))
    assert middle == exactly(c.linear_pipeline_middle(world, m, EVEN, links("chain")))
    fused = all_reduce("linear_pipeline", "chain", world, m)
    assert middle < fused if world > 2 else middle == exactly(fused)


@pytest.mark.parametrize("world", [3, 4, 5, 8])
def test_fusing_pays_on_a_chain_and_not_on_a_switch(world):
    m = 32
    fused, unfused = (all_reduce(f"linear_pipeline{end}", "chain", world, m) for end in ("", "_unfused"))
    assert fused < 0.75 * unfused
    assert fused < all_reduce("ring", "chain", world)
    fused, unfused = (all_reduce(f"linear_pipeline{end}", "switch", world, m) for end in ("", "_unfused"))
    assert 0.95 * unfused < fused <= unfused
    assert fused > 2 * EVEN * BETA  # an interior rank's port carries everything twice
    assert fused > 1.05 * all_reduce("ring", "switch", world)


@pytest.mark.parametrize("kind", ["switch", "chain"])
@pytest.mark.parametrize("world", [2, 3, 5, 8])
def test_ring(kind, world):
    got = all_reduce("ring", kind, world)
    assert got == exactly(2 * (world - 1) * (ALPHA + EVEN / world * BETA))
    assert got == exactly(c.ring(world, EVEN, links(kind)))


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("world", [2, 4, 8, 16])
def test_binomial_tree(collective, world):
    got = c.cost(collective, "binomial_tree", world=world, nbytes=EVEN, links=links("switch"))
    assert got == exactly(math.ceil(math.log2(world)) * (ALPHA + EVEN * BETA))
    assert got == exactly(c.binomial_tree(world, EVEN, links("switch")))


@pytest.mark.parametrize("world", [2, 4, 8])
def test_bidirectional_exchange(world):
    got = all_reduce("bidirectional_exchange", "switch", world)
    assert got == exactly(2 * math.log2(world) * ALPHA + 2 * (world - 1) / world * EVEN * BETA)
    assert got == exactly(c.bidirectional_exchange(world, EVEN, links("switch")))


SLOW = 10 * BETA


def test_a_message_goes_at_the_slowest_rate_on_its_way():
    """A broadcast along a pipeline, in one piece: the hops add up, slow where they meet the slow place."""

    def pipeline(kind, betas, root=0, **more):
        model = _core.Links(kind, alpha=ALPHA, beta=BETA, betas=betas, **more)
        return c.cost("broadcast", "linear_pipeline", world=4, nbytes=EVEN, links=model, root=root)

    fast, slow = ALPHA + EVEN * BETA, ALPHA + EVEN * SLOW
    assert pipeline("switch", [BETA, BETA, SLOW, BETA]) == exactly(fast + 2 * slow)  # 1 to 2 and 2 to 3
    assert pipeline("chain", [SLOW, BETA, BETA]) == exactly(slow + 2 * fast)
    assert pipeline("chain", [BETA, BETA, SLOW]) == exactly(slow + 2 * fast)
    inside = {"nodes": [0, 0, 1, 1]}
    assert pipeline("nodes", [BETA, SLOW], **inside) == exactly(slow)  # inside a node nothing is charged
    assert pipeline("nodes", [], **inside) == exactly(fast)
    assert pipeline("nodes", [], **inside, inner_beta=BETA / 2) == exactly(fast + EVEN * BETA)


def test_a_far_message_takes_every_link_for_as_long_as_the_slowest():
    """On a chain of three, 0 to 2 at the rate of link 1 keeps 0 to 1 waiting for that long."""
    model = _core.Links("chain", alpha=ALPHA, beta=BETA, betas=[BETA, SLOW])
    got = c.cost("scatter", "direct", world=3, nbytes=EVEN, links=model)
    assert got == exactly((ALPHA + EVEN / 3 * BETA) + (ALPHA + EVEN / 3 * SLOW))


def test_the_ranks_of_a_node_share_its_ports():
    model = _core.Links("nodes", alpha=ALPHA, beta=BETA, nodes=[0, 0, 1])
    got = c.cost("gather", "direct", world=3, nbytes=EVEN, links=model, root=2)
    assert got == exactly(2 * (ALPHA + EVEN / 3 * BETA))
    assert model.betas == []


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("world", [2, 3, 4, 5, 7, 8])
def test_direct_keeps_all_ports_of_a_switch_busy(collective, world):
    got = c.cost(collective, "direct", world=world, nbytes=EVEN, links=links("switch"))
    assert got == exactly((world - 1) * (ALPHA + EVEN / world * BETA))


@pytest.mark.parametrize("world", [2, 3, 4, 5, 7, 8])
def test_one_shot_keeps_all_ports_of_a_switch_busy(world):
    assert all_reduce("one_shot", "switch", world) == exactly((world - 1) * (ALPHA + EVEN * BETA))
    assert all_reduce("direct", "switch", world) == exactly(2 * (world - 1) * (ALPHA + EVEN / world * BETA))


@pytest.mark.parametrize(
    ("kind", "betas", "more", "sentence"),
    [
        ("switch", [BETA], {}, "an entry for each of 4 ranks, got 1"),
        ("chain", [BETA] * 4, {}, "an entry for each of 3 links, got 4"),
        ("nodes", [BETA], {"nodes": [0, 0, 1, 1]}, "an entry for each of 2 nodes, got 1"),
        ("nodes", [], {"nodes": [0, 1]}, "nodes must have an entry for each of 4 ranks, got 2"),
    ],
)
def test_rates_of_another_world_are_refused(kind, betas, more, sentence):
    model = _core.Links(kind, betas=betas, **more)
    with pytest.raises(InvalidArgumentError, match=sentence):
        c.cost("broadcast", "binomial_tree", world=4, nbytes=8, links=model)


def test_the_best_segments_go_by_the_slowest_rate():
    model = _core.Links("switch", alpha=ALPHA, beta=BETA, betas=[BETA, SLOW, BETA])
    assert c.best_segments(3, 1 << 20, model) == c.best_segments(
        3, 1 << 20, _core.Links("switch", alpha=ALPHA, beta=SLOW)
    )


@pytest.mark.parametrize(
    ("collective", "algorithm", "fill"),
    [
        ("broadcast", "linear_pipeline", 6),
        ("all_reduce", "linear_pipeline", 13),
        ("all_reduce", "linear_pipeline_middle", 7),
    ],
    ids=["there", "and back", "to the middle and back"],
)
def test_the_best_segment_count_is_at_the_bottom_of_the_u(collective, algorithm, fill):
    model, nbytes = links("chain"), 1 << 20
    best = c.best_segments(8, nbytes, model, collective, algorithm)
    assert best == round(math.sqrt(fill * nbytes * BETA / ALPHA))
    counts = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    times = [c.cost(collective, algorithm, world=8, nbytes=nbytes, links=model, segments=m) for m in counts]
    bottom = times.index(min(times))
    assert best / 2 <= counts[bottom] <= best * 2
    assert times[: bottom + 1] == sorted(times[: bottom + 1], reverse=True)
    assert times[bottom:] == sorted(times[bottom:])


def test_the_best_segment_count_stays_in_its_range():
    assert c.best_segments(2, 1 << 30, links("switch")) == 1  # no pipeline to fill
    assert c.best_segments(8, 0, links("switch")) == 1
    assert c.best_segments(8, 8, links("switch")) == 1
    assert c.best_segments(8, 1 << 20, _core.Links("switch", alpha=0.0)) == 4096
    assert c.best_segments(64, 1 << 40, links("switch")) == 4096


@pytest.mark.parametrize("kind", ["switch", "chain"])
@pytest.mark.parametrize("world", [100, 2048])
def test_closed_forms_of_large_worlds(kind, world):
    """In seconds: a scheduler that looks at every lane for every step would take an hour."""
    model, m, nbytes = links(kind, latency=3e-6), 128, 64 * 2048 * 128

    def got(collective, algorithm, segments=1, model=model):
        return c.cost(collective, algorithm, world=world, nbytes=nbytes, links=model, segments=segments)

    for collective in ("broadcast", "reduce"):
        assert got(collective, "linear_pipeline", m) == exactly(c.linear_pipeline(world, m, nbytes, model))
    far = links(kind)
    unfused = got("all_reduce", "linear_pipeline_unfused", m, far)
    assert unfused == exactly(c.linear_pipeline_unfused(world, m, nbytes, far))
    if kind == "chain":
        fused = got("all_reduce", "linear_pipeline", m, far)
        assert fused == exactly(c.linear_pipeline_fused(world, m, nbytes, far))
        middle = got("all_reduce", "linear_pipeline_middle", m, far)
        assert middle == exactly(c.linear_pipeline_middle(world, m, nbytes, far))
    assert got("broadcast", "binomial_tree", 1, links("switch")) == exactly(
        math.ceil(math.log2(world)) * (ALPHA + nbytes * BETA)
    )


def test_closed_forms_of_the_ring_and_the_exchange_in_a_large_world():
    nbytes = 64 * 512 * 64
    for kind in ("switch", "chain"):
        got = c.cost("all_reduce", "ring", world=512, nbytes=nbytes, links=links(kind))
        assert got == exactly(c.ring(512, nbytes, links(kind)))
    for world in (512, 2048):
        got = c.cost(
            "all_reduce", "bidirectional_exchange", world=world, nbytes=1 << 24, links=links("switch")
        )
        assert got == exactly(c.bidirectional_exchange(world, 1 << 24, links("switch")))


def test_simulate_takes_the_best_segments_of_each_world():
    model = links("chain")
    points = c.simulate("all_reduce", "linear_pipeline", worlds=(2, 64), nbytes=EVEN, links=model)
    assert [point.world for point in points] == [2, 64]
    for point in points:
        assert point.segments == c.best_segments(point.world, EVEN, model, "all_reduce")
        assert point.seconds == pytest.approx(
            c.linear_pipeline_fused(point.world, point.segments, EVEN, model), rel=0.02
        )  # the last segment is shorter than the others
    (tree,) = c.simulate("broadcast", "binomial_tree", worlds=[8], nbytes=EVEN, links=links("switch"))
    assert tree == (8, 1, pytest.approx(c.binomial_tree(8, EVEN, links("switch"))))
    (four,) = c.simulate("reduce", "linear_pipeline", worlds=[8], nbytes=EVEN, links=model, segments=4)
    assert four == (8, 4, pytest.approx(c.linear_pipeline(8, 4, EVEN, model)))


def test_all_gather_takes_a_multiple_of_the_world():
    got = c.cost("all_gather", "ring", world=3, nbytes=3 * 640 + 2, links=links("switch"))
    assert got == exactly(2 * (ALPHA + 640 * BETA))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"nbytes": -1}, "nbytes=-1 must not be negative"),
        ({"world": 0}, "world must be at least 1, got 0"),
        ({"root": 4}, r"root must be in \[0, 4\), got 4"),
        ({"algorithm": "nope"}, "unknown algorithm 'nope'"),
        ({"collective": "all_gather"}, "'linear_pipeline' does not offer all_gather"),
        ({"nbytes": 10.5}, "nbytes must be a whole number of 64 bits, got 10.5"),
        ({"world": "2"}, "world must be a whole number of 32 bits, got '2'"),
        ({"segments": 1 << 40}, "segments must be a whole number of 32 bits"),
        ({"segments": 4097}, "segments must be at most 4096, got 4097"),
        ({"algorithm": None}, "algorithm must be a name, got None"),
        ({"links": "switch"}, "links must be a model of the links, as gpucomm.links.parse_model"),
        (
            {"coding": c.Coding(-1, -1, -1)},
            "must be a Coding of finite figures from 0 up, got Coding.ratio=-1",
        ),
        ({"coding": (1.0, 0.0)}, "must be a Coding of finite figures"),
    ],
)
def test_bad_arguments_are_sentences(arguments, sentence):
    request = {"collective": "reduce", "algorithm": "linear_pipeline", "world": 4, "nbytes": 8}
    with pytest.raises(InvalidArgumentError, match=sentence):
        c.cost(**request | {"links": links("switch")} | arguments)


MODEL = links("switch")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        *[
            (lambda form=form, p=p: form(p, 8, MODEL), f"p must be a whole number of at least 1, got {p!r}")
            for form in (c.ring, c.binomial_tree, c.bidirectional_exchange)
            for p in (0, -1, 2.5, "a")
        ],
        *[
            (lambda form=form, p=p, m=m: form(p, m, 8, MODEL), sentence)
            for form in (
                c.linear_pipeline,
                c.linear_pipeline_fused,
                c.linear_pipeline_middle,
                c.linear_pipeline_unfused,
            )
            for p, m, sentence in ((1, 1, "p must be .* at least 2, got 1"), (4, 0, "m must be .* 1, got 0"))
        ],
        (lambda: c.bidirectional_exchange(3, 8, MODEL), "p must be a power of two, got 3"),
        (lambda: c.ring(2, -8, MODEL), "nbytes=-8 must not be negative"),
        (lambda: c.ring(2, 8, None), "links must be a model of the links"),
        (lambda: c.best_segments(0, 8, MODEL), "world must be a whole number of at least 1, got 0"),
        (lambda: c.best_segments(4, -8, MODEL), "nbytes=-8 must not be negative"),
        (
            lambda: c.best_segments(4, 8, MODEL, "all_reduce", "ring"),
            "must be a linear pipeline .*got 'ring'",
        ),
        (lambda: c.best_segments(4, 8, MODEL, "all_gather"), "'linear_pipeline' for 'all_gather'"),
        (
            lambda: c.simulate("all_reduce", "ring", worlds=3, nbytes=8, links=MODEL),
            "worlds must be numbers of ranks",
        ),
        (
            lambda: c.simulate("all_reduce", "ring", worlds=[3], nbytes=8, links=MODEL, segments=0),
            "segments must be at least 1, got 0",
        ),
        (lambda: c.measured_coding(5), "codec must be a spec such as 'int8', got 5"),
    ],
)
def test_what_no_form_is_for_is_a_sentence(call, sentence):
    with pytest.raises(InvalidArgumentError, match=sentence):
        call()


def test_links_show_their_figures():
    model = _core.Links("nodes", alpha=1e-6, beta=2e-9, nodes=[0, 0, 1], inner_beta=1e-10)
    assert repr(model) == (
        "Links(kind='nodes', alpha=1e-06, beta=2e-09, lambda_=0, gamma=0, nodes=[0, 0, 1], inner_alpha=0, "
        "inner_beta=1e-10, inner_lambda=0)"
    )
    assert eval(repr(model), {"Links": _core.Links}).nodes == [0, 0, 1]


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "all_reduce"])
@pytest.mark.parametrize(
    "model",
    [
        _core.Links(kind="chain", alpha=1e-6, beta=2e-8),  # 400 Mbit/s
        _core.Links(kind="switch", alpha=5e-5, beta=8e-9),
        _core.Links(kind="switch", alpha=5e-6, lambda_=5e-6, beta=2e-9),
    ],
)
def test_auto_cuts_a_pipeline_on_links_as_the_papers_do(model, collective):
    for nbytes in (1 << 16, 1 << 20, 1 << 24):
        for world in (4, 8):
            best = c.best_segments(world, nbytes, model, collective)
            least = _core.total_time(collective, "linear_pipeline", world, nbytes, model, segments=best)
            _, segments, taken = _core.choose(collective, nbytes, world, model, algorithm="linear_pipeline")
            assert taken <= 1.05 * least, (nbytes, world, segments, best)
