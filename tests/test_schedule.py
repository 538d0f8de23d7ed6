"""The scheduler beside a simple one that looks at every lane of every rank for every step: the same bits."""

from __future__ import annotations

import math

import pytest
from conftest import pairs

from gpucomm import _core
from gpucomm.errors import MismatchError

NEVER = math.inf


class Scan:
    """Of all heads of lanes that could begin, the earliest; of those the lowest rank's; of these the one that
    waits for longest; then the lower lane's.
    """

    def __init__(self, plans, offsets, links):
        self.offsets, self.links, self.ports, self.events = offsets, links, {}, []
        self.steps = [plan.steps for plan in plans]
        self.lanes = [{} for _ in plans]
        for rank, steps in enumerate(self.steps):
            for i, step in enumerate(steps):
                self.lanes[rank].setdefault(step.lane, []).append(i)
        self.free, self.done, self.arrived, self.sent = {}, {}, {}, set()

    def run(self):
        while True:
            heads = [self.turn(r, lane) for r, lanes in enumerate(self.lanes) for lane in lanes]
            at, rank, _, lane = min(heads, default=(NEVER, 0, NEVER, 0))
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
            hops = range(min(a, b), max(a, b))
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
        at, since = self.earliest(rank, lane)
        return at, rank, since, lane

    def earliest(self, rank, lane):
        """When the head of a lane could begin, and since when it only waits for ports."""
        if not self.lanes[rank][lane]:
            return NEVER, NEVER
        index = self.lanes[rank][lane][0]
        step = self.steps[rank][index]
        at = self.ready(rank, index)
        if "recv" in step.kind or at == NEVER:
            return NEVER, NEVER
        if step.kind != "send":
            return at, at
        peer = step.peers[0]
        receive = self.receive(rank, peer)
        posted = NEVER if receive is None else self.ready(peer, receive)
        _, latency, _, route = self.way(rank, peer)
        since = max(at, posted - latency)
        return max([since, *(self.ports.get(port, 0.0) - later for port, later in route)]), since

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
        receive = self.receive(rank, peer)
        travels = size or (rank, peer) not in self.sent
        self.sent.add((rank, peer))
        alpha, latency, beta, route = self.way(rank, peer)
        left = at + alpha + size * beta if travels else at
        for port, later in route if travels else ():
            self.ports[port] = left + later
        self.finish(rank, index, peer, at, left)
        self.arrived[peer, receive, rank] = left + latency if travels else at
        into = self.steps[peer][receive]
        arrived = [self.arrived.get((peer, receive, source), NEVER) for source in into.peers]
        if max(arrived) < NEVER:
            folding = self.bytes(into) * len(into.peers) * links.gamma if into.kind == "recv_reduce" else 0
            self.finish(peer, receive, -1, max(arrived), max(arrived) + folding)


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
        assert events == Scan(plans, offsets, links).run()
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
