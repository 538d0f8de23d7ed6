"""Plans: every algorithm's are valid for every world, root and segment count; broken ones are found."""

from __future__ import annotations

from itertools import pairwise

import pytest
from conftest import ROOTED, pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError, MismatchError

Step, Place, Plan = _core.Step, _core.Place, _core.Plan


@pytest.mark.parametrize(("collective", "algorithm"), pairs())
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_plan_is_valid(collective, algorithm, data):
    world = data.draw(st.integers(1, 13), label="world")
    root = data.draw(st.integers(0, world - 1), label="root") if collective in ROOTED else 0
    segments = data.draw(st.integers(1, 9), label="segments")
    in_place = collective == "broadcast" or data.draw(st.booleans(), label="in_place")
    plans = _core.build_plans(collective, algorithm, world, root=root, segments=segments, in_place=in_place)
    found = _core.verify(plans)
    assert found.lossy_passes == 0
    assert (found.messages == 0) == (world == 1)
    sends = sum(step.kind == "send" for plan in plans for step in plan.steps)
    assert found.messages == sends


@pytest.mark.parametrize(("collective", "algorithm"), pairs())
def test_every_root(collective, algorithm):
    for world in [2, 3, 4, 5, 7, 8]:
        for root in range(world if collective in ROOTED else 1):
            _core.verify(_core.build_plans(collective, algorithm, world, root=root, segments=3))


def test_direct_folds_all_sources_at_once():
    plans = _core.build_plans("all_reduce", "direct", 5)
    folds = [step for step in plans[2].steps if step.kind == "recv_reduce"]
    assert [step.peers for step in folds] == [[0, 1, 3, 4]]


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_uneven_counts_are_cut_exactly(algorithm):
    plans = _core.build_plans("all_gather", algorithm, 4, segments=2)
    _core.verify(plans)
    counts = [5, 0, 1, 300]
    offsets = plans[0].layout(306, align=16, counts=counts)
    ends = [offsets[(chunk + 1) * plans[0].segments] for chunk in range(4)]
    assert ends == [5, 5, 6, 306]
    assert all(a <= b for a, b in pairwise(offsets))


@given(
    count=st.integers(0, 10_000),
    align=st.sampled_from([1, 16, 64]),
    segments=st.integers(1, 9),
    world=st.integers(1, 9),
)
def test_cuts_cover_the_message_on_aligned_borders(count, align, segments, world):
    plan = _core.build_plan("all_reduce", "ring", world, 0, segments=segments)
    offsets = plan.layout(count, align=align)
    assert offsets[0] == 0 and offsets[-1] == count and len(offsets) == plan.pieces + 1
    assert all(a <= b for a, b in pairwise(offsets))
    assert all(o % align == 0 or o == count for o in offsets)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"align": 0}, "align must be at least 1, got 0"),
        ({"counts": [10]}, "counts must be of 4 chunks, 10 elements together, got 1 of 10"),
        ({"counts": [1, 2, 3, 5]}, "counts must be of 4 chunks, 10 elements together, got 4 of 11"),
    ],
)
def test_a_layout_that_cannot_be(how, sentence):
    plan = _core.build_plans("all_reduce", "ring", 4, 0, 1)[0]
    with pytest.raises(InvalidArgumentError, match=sentence):
        plan.layout(10, **how)


def coded_ring_all_gather(world: int) -> list:
    """Compress once, forward the coded bytes, decode every shard, the own one too."""
    plans = []
    for rank in range(world):
        own, slot = rank, Place("coded", rank)
        steps = [Step("encode", piece=own, source=Place("input"), target=slot)]
        have = {own: 0}
        for hop in range(world - 1):
            out, into = (rank - hop) % world, (rank - hop - 1) % world
            steps.append(
                Step(
                    "send",
                    piece=out,
                    source=Place("coded", out),
                    peers=[(rank + 1) % world],
                    lane=1,
                    round=hop,
                    after=[have[out]],
                )
            )
            steps.append(
                Step(
                    "recv",
                    piece=into,
                    target=Place("coded", into),
                    peers=[(rank - 1) % world],
                    lane=2,
                    round=hop,
                )
            )
            have[into] = len(steps) - 1
        for piece, before in have.items():
            steps.append(
                Step(
                    "decode",
                    piece=piece,
                    source=Place("coded", piece),
                    target=Place("output"),
                    lane=3,
                    after=[before],
                )
            )
        plans.append(
            Plan(
                "all_gather",
                "coded_ring",
                world,
                rank,
                chunks=world,
                in_place=False,
                coded_slots=world,
                steps=steps,
            )
        )
    return plans


@pytest.mark.parametrize("world", [2, 3, 5])
def test_coded_pieces_of_variable_size_lie_one_lossy_pass_away(world):
    found = _core.verify(coded_ring_all_gather(world))
    assert found.lossy_passes == 1
    assert found.messages == world * (world - 1)


def two_ranks(first: list, second: list, **options) -> list:
    return [
        Plan("all_reduce", "made_up", 2, rank, steps=steps, **options)
        for rank, steps in enumerate((first, second))
    ]


def exchange(rank: int, **changes) -> list:
    """A right plan of one rank: send mine, fold theirs in scratch, copy when both are done."""
    fold = {"target": Place("scratch"), "peers": [1 - rank], "lane": 1, "final": True} | changes
    return [
        Step("send", peers=[1 - rank], lane=0),
        Step("recv_reduce", **fold),
        Step("copy", source=Place("scratch"), lane=1, after=[0]),
    ]


def test_the_made_up_plan_is_valid():
    _core.verify(two_ranks(exchange(0), exchange(1), scratch_slots=1))


def exchanged_blocks(piece_sent: int, piece_kept: int) -> list:
    """all_to_all of two ranks; rank 0 sends and keeps the pieces named."""
    plans = []
    for rank in range(2):
        sent, kept = (piece_sent, piece_kept) if rank == 0 else (0, 1)
        steps = [
            Step("send", piece=sent, source=Place("input"), peers=[1 - rank]),
            Step("recv", piece=1 - rank, peers=[1 - rank], lane=1),
            Step("copy", piece=kept, source=Place("input"), lane=2),
        ]
        plans.append(Plan("all_to_all", "made_up", 2, rank, chunks=2, in_place=False, steps=steps))
    return plans


def test_an_exchange_delivers_the_right_block():
    _core.verify(exchanged_blocks(1, 0))
    with pytest.raises(MismatchError, match="piece 0 of the result is piece 0 of the input, not 1"):
        _core.verify(exchanged_blocks(0, 0))


def test_a_piece_of_scratch_is_not_taken_for_another():
    steps = [
        Step("copy", piece=0, source=Place("input"), target=Place("scratch")),
        Step("copy", piece=1, source=Place("scratch"), target=Place("output")),
        Step("copy", piece=0, source=Place("scratch"), target=Place("output")),
    ]
    plan = Plan("all_gather", "made_up", 1, 0, segments=2, in_place=False, scratch_slots=1, steps=steps)
    with pytest.raises(MismatchError, match="piece 1 of the result is piece 0 of the input, not 1"):
        _core.verify([plan])


@pytest.mark.parametrize("root", range(6))
def test_every_subtree_travels_as_one_message(root):
    plans = _core.build_plans("gather", "binomial_tree", 6, root=root)
    found = _core.verify(plans)
    assert (found.messages, found.rounds) == (5, 3)


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (exchange(0), [Step("send", peers=[0])], "never receives"),
        (exchange(0)[1:2], [], "waits for a message"),
        (exchange(0), exchange(1, round=1), "in round 1"),
        (exchange(0), exchange(1, final=False), "never marked final"),
        (
            [
                Step("recv_reduce", peers=[1], target=Place("output"), lane=0, final=True),
                Step("send", peers=[1], lane=0),
            ],
            [
                Step("recv_reduce", peers=[0], target=Place("output"), lane=0, final=True),
                Step("send", peers=[0], lane=0),
            ],
            "deadlock",
        ),
        ([Step("copy", source=Place("scratch"), target=Place("output"))], [], "nothing is yet"),
        (
            [*exchange(0)[:2], Step("reduce", source=Place("scratch"), lane=1, after=[0], final=True)],
            exchange(1),
            "folds a result that was already final",
        ),
        (
            [*exchange(0)[:2], Step("copy", source=Place("scratch"), lane=2, after=[0])],
            exchange(1),
            "reads piece 0 unordered with the step that writes it",
        ),
        ([], [], "lacks or repeats"),
    ],
)
def test_broken_plans_are_found_out(first, second, sentence):
    with pytest.raises(MismatchError, match=sentence):
        _core.verify(two_ranks(first, second, scratch_slots=1))


@pytest.mark.parametrize(("sending", "receiving"), [((0, 1), (0, 0)), ((0, 0), (0, 1))])
def test_messages_to_one_peer_on_two_lanes_could_overtake(sending, receiving):
    steps = [
        [Step("send", piece=piece, peers=[1], lane=lane) for piece, lane in enumerate(sending)],
        [Step("recv", piece=piece, peers=[0], lane=lane) for piece, lane in enumerate(receiving)],
    ]
    plans = [Plan("broadcast", "made_up", 2, rank, segments=2, steps=steps[rank]) for rank in range(2)]
    with pytest.raises(MismatchError, match="messages to rank 1 could overtake"):
        _core.verify(plans)


def test_an_unordered_write_is_a_race():
    hasty = [
        *exchange(0)[:2],
        Step("copy", source=Place("scratch"), lane=1),
    ]  # does not wait for its own send
    slow = [*exchange(1)[:2], exchange(1)[2]]
    with pytest.raises(MismatchError, match="unordered"):
        _core.verify(two_ranks(hasty, slow, scratch_slots=1))


@pytest.mark.parametrize(
    ("plan", "step", "sentence"),
    [
        ({"world": 0}, {}, r"world must be in \[1, 1048576\), got 0"),
        ({"rank": 1 << 28}, {}, r"rank must be in \[0, 2\)"),
        ({"root": -1}, {}, r"root must be in \[0, 2\), got -1"),
        ({"chunks": 0}, {}, "chunks must be in"),
        ({"chunks": 1 << 19, "segments": 1 << 19}, {}, "chunks times segments must be in"),
        ({}, {"lane": -1000000}, "a step's lane must be in"),
        ({}, {"piece": 1}, r"a step's first piece must be in \[0, 1\), got 1"),
        ({}, {"pieces": 2}, r"a step's number of pieces must be in \[1, 2\), got 2"),
        ({}, {"kind": "send"}, "the number of a message's peers must be in"),
        ({}, {"after": [1]}, "a step that is done before must be in"),
    ],
)
def test_plans_that_cannot_be(plan, step, sentence):
    with pytest.raises(InvalidArgumentError, match=sentence):
        Plan(
            **{"collective": "all_reduce", "algorithm": "made up", "world": 2, "rank": 0} | plan,
            steps=[Step(**{"kind": "copy"} | step)],
        )


def test_plans_of_some_ranks_are_none():
    plans = _core.build_plans("all_reduce", "ring", 3, 0, 1)
    for wrong in (plans[:2], [plans[1], plans[0], plans[2]]):
        for read in (_core.verify, _core.place_steps):
            with pytest.raises(InvalidArgumentError, match="must be those of all ranks in order; place 0"):
                read(wrong)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("all_reduce", "quantum", 2, 0), "unknown algorithm 'quantum'; known: .*ring"),
        (("all_shuffle", "ring", 2, 0), "unknown collective 'all_shuffle'; known: all_reduce"),
        (("broadcast", "ring", 2, 0), "'ring' does not offer broadcast; those that do: .*linear_pipeline"),
        (("gather", "two_shot", 2, 0), "not offer gather, nor does another that codes; without do: .*direct"),
        (("broadcast", "direct", 2, 0, 2), r"root must be in \[0, 2\), got 2"),
        (("all_reduce", "ring", 2, 5), r"rank must be in \[0, 2\), got 5"),
        (("all_reduce", "ring", 0, 0), "world must be at least 1, got 0"),
        (("all_reduce", "ring", 2, 0, 0, 0), "segments must be at least 1, got 0"),
    ],
)
def test_bad_requests_are_sentences(arguments, sentence):
    with pytest.raises(InvalidArgumentError, match=sentence):
        _core.build_plan(*arguments)


@pytest.mark.parametrize("nodes", [[0, 2], [1, 0], [0, -1]])
def test_nodes_are_numbered_in_the_order_of_their_first_ranks(nodes):
    with pytest.raises(InvalidArgumentError, match="numbered from 0 in the order of their first ranks"):
        _core.build_plan("all_reduce", "hierarchical", 2, 0, nodes=nodes)
