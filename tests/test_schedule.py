"""The scheduler beside a simple one that looks at every lane of every rank for every step: the same bits."""

from __future__ import annotations

import math

import pytest
from conftest import pairs

from gpucomm import _core
from gpucomm.errors import MismatchError

NEVER = math.inf


class Scan:
    """Of all heads of lanes that could go on, to a step or to a message's next port, the earliest; of those
    the lowest rank's; of these the lowest lane's.
    """

    def __init__(self, plans, offsets, links):
        self.offsets, self.links, self.ports, self.events = offsets, links, {}, []
        self.steps = [plan.steps for plan in plans]
        self.lanes = [{} for _ in plans]
        for rank, steps in enumerate(self.steps):
            for i, step in enumerate(steps):
                self.lanes[rank].setdefault(step.lane, []).append(i)
        self.free, self.done, self.arrived, self.sent = {}, {}, {}, set()
        self.under_way = {}  # by rank and step: when it began, comes to its next port, how many it passed

    def run(self):
        while True:
            if self.receive_one():
                continue
            heads = [(self.turn(r, lane), r, lane) for r, lanes in enumerate(self.lanes) for lane in lanes]
            at, rank, lane = min(heads, default=(NEVER, 0, 0))
            if at == NEVER:
                return self.events
            self.commit(at, rank, self.lanes[rank][lane][0])

    def bytes(self, step):
        return self.offsets[step.piece + step.pieces] - self.offsets[step.piece]

    def ready(self, rank, index):
        step = self.steps[rank][index]
        if self.lanes[rank][step.lane][:1] != [index]:
            return NEVER
        before = [self.done.get((rank, i), NEVER) for i in step.after]
        return max([self.free.get((rank, step.lane), 0.0), *before])

    def receive(self, sender, rank):
        """The receiver's first receive from this sender that has not come."""
        for i, step in enumerate(self.steps[rank]):
            if "recv" in step.kind and sender in step.peers and (rank, i, sender) not in self.arrived:
                return i
        return None

    def way(self, a, b):
        """alpha, latency and beta, and (port, how much later it is used)."""
        links = self.links
        if links.kind == "chain":
            hops = range(a, b) if a < b else range(a - 1, b - 1, -1)
            beta = max((links.betas[i] for i in hops), default=0) if links.betas else links.beta
            return links.alpha, links.lambda_, beta, [((i, a > b), 0.0) for i in hops]
        if links.kind == "nodes":
            if links.nodes[a] == links.nodes[b]:
                ports = [(("out", a), 0.0), (("in", b), links.inner_lambda)]
                return links.inner_alpha, links.inner_lambda, links.inner_beta, ports
            a, b = ("node", links.nodes[a]), ("node", links.nodes[b])
            beta = max(links.betas[a[1]], links.betas[b[1]]) if links.betas else links.beta
        else:
            beta = max(links.betas[a], links.betas[b]) if links.betas else links.beta
        return links.alpha, links.lambda_, beta, [(("out", a), 0.0), (("in", b), links.lambda_)]

    def turn(self, rank, lane):
        """When the head of a lane can go on."""
        if not self.lanes[rank][lane]:
            return NEVER
        index = self.lanes[rank][lane][0]
        step = self.steps[rank][index]
        if "recv" in step.kind or (step.kind == "send" and self.receive(rank, step.peers[0]) is None):
            return NEVER
        return self.under_way[rank, index][1] if (rank, index) in self.under_way else self.ready(rank, index)

    def receive_one(self):
        """Ends a receive at the head of a lane of which all is there."""
        for rank, lanes in enumerate(self.lanes):
            for lane in lanes.values():
                for index in lane[:1]:
                    step = self.steps[rank][index]
                    arrived = [self.arrived.get((rank, index, source), NEVER) for source in step.peers]
                    at = max([self.ready(rank, index), *arrived])
                    if "recv" in step.kind and at < NEVER:
                        size = self.bytes(step) * len(step.peers) if step.kind == "recv_reduce" else 0
                        self.finish(rank, index, -1, at, at + size * self.links.gamma)
                        return True
        return False

    def finish(self, rank, index, peer, start, end):
        step = self.steps[rank][index]
        self.lanes[rank][step.lane].pop(0)
        self.free[rank, step.lane] = self.done[rank, index] = end
        if self.bytes(step) or peer >= 0:
            self.events.append((rank, index, peer, start, end))

    def commit(self, at, rank, index):
        step, links = self.steps[rank][index], self.links
        size = self.bytes(step)
        if step.kind != "send":
            self.finish(rank, index, -1, at, at + size * links.gamma)
            return
        peer = step.peers[0]
        alpha, latency, beta, route = self.way(rank, peer)
        began, _, passed = self.under_way.pop((rank, index), (None, at, 0))
        left = at
        if size or (rank, peer) not in self.sent:
            port, later = route[passed]
            begin = max(at, self.ports.get(port, 0.0) - later)
            left = begin + (alpha + size * beta)
            self.ports[port] = left + later
            began = begin if began is None else began
            if passed + 1 < len(route):
                self.under_way[rank, index] = began, begin, passed + 1
                return
            self.arrived[peer, self.receive(rank, peer), rank] = left + latency
        else:
            began = at
            self.arrived[peer, self.receive(rank, peer), rank] = at
        self.sent.add((rank, peer))
        self.finish(rank, index, peer, began, left)


def slow_first(kind, world):
    """Nodes of two ranks, and the first place slower than the others."""
    nodes = [rank // 2 for rank in range(world)] if kind == "nodes" else []
    places = {"switch": world, "chain": world - 1, "nodes": (world + 1) // 2}[kind]
    return {"nodes": nodes, "betas": [7e-9] + [1e-9] * (places - 1)}


@pytest.mark.parametrize("own_rates", [False, True])
@pytest.mark.parametrize("kind", ["switch", "chain", "nodes"])
@pytest.mark.parametrize(("collective", "algorithm"), pairs())
def test_the_same_events_in_the_same_order(kind, own_rates, collective, algorithm):
    for world, segments, latency, gamma in ((2, 1, 0.0, 0.0), (5, 3, 3e-6, 1e-10), (6, 2, 0.7, 0.0)):
        more = slow_first(kind, world)
        plans = _core.build_plans(collective, algorithm, world, 1, segments, nodes=more["nodes"])
        offsets = plans[0].layout(world * 999, 64)
        more |= {} if own_rates else {"betas": []}
        inner = {"inner_alpha": 1e-7, "inner_beta": 3e-10, "inner_lambda": latency / 9}
        more |= inner if kind == "nodes" else {}
        links = _core.Links(kind, alpha=5e-6, beta=1e-9, lambda_=latency, gamma=gamma, **more)
        got = _core.schedule(plans, offsets, links)
        events = [(e.rank, e.step, e.peer, e.start_s, e.end_s) for e in got.events]
        expected = Scan(plans, offsets, links).run()
        assert events == sorted(expected, key=lambda event: (event[4], event[0], event[1]))
        total = _core.total_time(collective, algorithm, world, offsets[-1], links, 1, segments)
        assert total == got.total_s


def test_plans_that_never_finish():
    steps = [_core.Step("recv", peers=[1])], [_core.Step("recv", peers=[0])]
    plans = [_core.Plan("broadcast", "none", 2, rank, steps=some) for rank, some in enumerate(steps)]
    with pytest.raises(MismatchError, match="the plans never finish"):
        _core.schedule(plans, [0, 8], _core.Links())
    send = [_core.Step("send", peers=[1])]
    plans = [_core.Plan("broadcast", "none", 2, rank, steps=some) for rank, some in enumerate((send, []))]
    with pytest.raises(MismatchError, match="the plans never finish"):
        _core.schedule(plans, [0, 8], _core.Links())
