"""Plans run round by round, as NCCL groups calls: all messages of a round at once, then what follows."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from conftest import ROOTED, pairs

from gpucomm import _core
from gpucomm.errors import MismatchError

Step, Place, Plan = _core.Step, _core.Place, _core.Plan

ALL = [(*pair, coded) for coded in (False, True) for pair in pairs(coded=coded)]


def of(rank: int) -> int:
    """One contribution of a rank: what has come in is their sum, of eight bits for each."""
    return 1 << 8 * rank


class Rank:
    """The memory of a rank: in each cell what ranks have contributed, and the piece that they have."""

    def __init__(self, plan, placed) -> None:
        self.plan, self.placed = plan, placed
        self.steps = defaultdict(list)  # by round
        for numbered, of_round in zip(enumerate(plan.steps), placed, strict=True):
            self.steps[of_round].append(numbered)
        self.cells = {}
        for piece in range(plan.pieces):
            if plan.collective in ("broadcast", "scatter") and plan.rank != plan.root:
                continue
            if plan.collective in ("all_gather", "gather") and self.chunk(piece) != plan.rank:
                continue
            self.cells["output" if plan.in_place else "input", 0, piece] = (of(plan.rank), piece)

    def chunk(self, piece: int) -> int:
        plan = self.plan
        segment_major = plan.collective == "all_reduce" and plan.algorithm == "direct"
        return piece % plan.chunks if segment_major else piece // plan.segments

    def at(self, place, step) -> list[tuple]:
        space = "output" if place.space == "input" and self.plan.in_place else place.space
        slotted = space in ("scratch", "coded")
        base = (step.piece if place.base < 0 else place.base) if slotted else 0
        slot = place.slot if slotted else 0
        return [(space, slot, step.piece + i - base) for i in range(step.pieces)]

    def read(self, place, step) -> list[tuple]:
        return [self.cells[cell] for cell in self.at(place, step)]

    def write(self, place, step, values) -> None:
        self.cells.update(zip(self.at(place, step), values, strict=True))

    def local(self, of_round: int, landed) -> None:
        for index, step in self.steps[of_round]:
            if step.kind in ("send", "recv"):
                continue
            values = self.read(step.source, step)
            if step.kind in ("reduce", "decode_reduce"):
                values = added(values, self.read(step.target, step))
            for arrived in landed.get(index, []):
                values = added(values, arrived)
            self.write(step.target, step, values)

    def expected(self, piece: int) -> tuple | None:
        plan, chunk, every = self.plan, self.chunk(piece), sum(map(of, range(self.plan.world)))
        kind = plan.collective
        if kind in ("reduce", "gather") and plan.rank != plan.root:
            return None
        if kind in ("reduce_scatter", "scatter") and chunk != plan.rank:
            return None
        if kind == "all_to_all":
            return of(chunk), plan.rank * plan.segments + piece % plan.segments
        if kind in ("broadcast", "scatter"):
            return of(plan.root), piece
        return (of(chunk) if "gather" in kind else every), piece


def added(one: list[tuple], other: list[tuple]) -> list[tuple]:
    assert [piece for _, piece in one] == [piece for _, piece in other]
    return [(a + b, piece) for (a, piece), (b, _) in zip(one, other, strict=True)]


def exchange(ranks: list[Rank], of_round: int) -> list[dict]:
    """All messages of a round at once: none may write what another of the round touches."""
    queues = defaultdict(list)
    for me in ranks:
        for _, step in me.steps[of_round]:
            if step.kind == "send":
                queues[me.plan.rank, step.peers[0]].append(me.read(step.source, step))
    landed = [defaultdict(list) for _ in ranks]
    for me in ranks:
        steps = me.steps[of_round]
        touched = Counter(c for _, s in steps if s.kind == "recv" for c in me.at(s.target, s))
        touched.update({c for _, s in steps if s.kind == "send" for c in me.at(s.source, s)})
        for index, step in steps:
            if step.kind == "recv":
                assert all(touched[cell] == 1 for cell in me.at(step.target, step))
                me.write(step.target, step, queues[step.peers[0], me.plan.rank].pop(0))
            elif step.kind == "recv_reduce":
                landed[me.plan.rank][index] = [queues[peer, me.plan.rank].pop(0) for peer in step.peers]
    assert not any(queues.values()), "a message is sent in another round than it is received"
    return landed


def run(plans, agreed=()) -> None:
    ranks = [Rank(*pair) for pair in zip(plans, _core.place_steps(plans, list(agreed)), strict=True)]
    for me in ranks:
        me.local(-1, {})
    for of_round in range(1 + max(max(me.placed, default=0) for me in ranks)):
        landed = exchange(ranks, of_round)
        for me in ranks:
            me.local(of_round, landed[me.plan.rank])
    for me in ranks:
        for piece in range(me.plan.pieces):
            want = me.expected(piece)
            assert want is None or me.cells["output", 0, piece] == want


def requests(collective: str, algorithm: str, world: int, coded: bool) -> list[dict]:
    across = _core.algorithms()[algorithm]["across_nodes"]
    half = [0] * (world // 2) + [1] * (world - world // 2)
    spread = [r * 3 // world for r in range(world)] if world > 2 else half
    return [
        {"root": root, "segments": segments, "nodes": nodes, "additive": additive}
        for root in range(world if collective in ROOTED else 1)
        for segments in (1, 2, 3, 5)
        for nodes in ([half, spread] if across else [[]])
        for additive in ({False, coded})
    ]


@pytest.mark.parametrize(("collective", "algorithm", "coded"), ALL)
@pytest.mark.parametrize("world", range(2, 7))
def test_every_plan_runs_round_by_round(collective, algorithm, coded, world):
    for request in requests(collective, algorithm, world, coded):
        placed = [
            _core.build_plans(collective, algorithm, world, in_place=in_place, **request)
            for in_place in (True, False)
        ]
        in_place, apart = placed
        run(in_place)
        if collective != "broadcast":
            run(apart)
            # The ranks cannot know of each other whether they work in place: they agree on one.
            run(apart, in_place)
            run([placed[rank % 2][rank] for rank in range(world)], in_place)


def test_a_pipeline_takes_as_many_rounds_as_its_formula():
    for world in (2, 4, 7):
        plans = _core.build_plans("all_reduce", "linear_pipeline", world, segments=5)
        assert max(map(max, _core.place_steps(plans))) + 1 == 2 * world - 3 + 5


def test_a_receive_before_its_send_is_refused():
    plans = []
    for rank in range(2):
        steps = [Step("recv", peers=[1 - rank]), Step("send", peers=[1 - rank])]
        plans.append(Plan("all_reduce", "made_up", 2, rank, steps=steps))
    with pytest.raises(MismatchError, match="step 0 never runs: a deadlock"):
        _core.place_steps(plans)


def test_a_plan_that_needs_later_rounds_is_refused():
    """The ends agreed on one round, but this rank forwards what only arrives in it."""
    at_once = [Step("send", peers=[1]), Step("recv", peers=[1], target=Place("scratch"), lane=1)]
    mirror = [Step("send", peers=[0]), Step("recv", peers=[0], target=Place("scratch"), lane=1)]
    agreed = [
        Plan("all_reduce", "made_up", 2, rank, scratch_slots=1, steps=steps)
        for rank, steps in enumerate((at_once, mirror))
    ]
    later = [at_once[1], Step("send", peers=[1], after=[0])]
    mine = Plan("all_reduce", "made_up", 2, 0, scratch_slots=1, steps=later)
    with pytest.raises(MismatchError, match="step 1 needs what comes only in round 0"):
        _core.place_steps([mine, agreed[1]], agreed)
