"""What serves a wire by Gloo, over one of the tests' own: ranks are in this process, a message is here for
certain only when it was waited for."""

from __future__ import annotations

import datetime
import threading
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from test_served_wire import both, comes, exchange

from gpucomm import Communicator, errors
from gpucomm.launch import attempt, c10d
from gpucomm.launch.ranks import Ranks

BORDER = 8  # bytes at both ends of a frame, by which its coming is seen


class Work:
    """One message at one of its ends."""

    def __init__(self, array, net):
        self.array, self.net = array, net
        self.matched, self.data, self.asked = threading.Event(), None, False

    def wait(self, timeout):
        self.asked = True
        self.net.early += not self.sends and not self.matched.is_set()
        if not self.matched.wait(min(timeout.total_seconds(), 20)):
            raise RuntimeError("nobody came")
        if self.data is not None:
            self.array[: len(self.data)] = self.data
        if self.net.broken:
            raise RuntimeError("the connection is broken")

    @property
    def sends(self):
        return self in self.net.all_sent


class Net:
    """The groups of some ranks. `held`: nothing comes; `broken`: every wait fails, though all has come."""

    def __init__(self, world):
        self.held = self.broken = False
        self.early = self.cut = 0  # receives that were waited for before they came, or were too short
        self.all_sent, self.sent, self.posted = [], defaultdict(list), defaultdict(list)
        self.lock = threading.Lock()
        self.servers = [c10d._Server(Group(rank, self), "this rank") for rank in range(world)]

    def comms(self, context=0, world=None):
        world = world or len(self.servers)
        nodes = list(range(world))
        of_all = zip(range(world), self.servers, strict=False)
        how = {"nodes": nodes, "context": context, "timeout": 10}
        return [Communicator("c10d", rank, world, wire=server.wire, **how) for rank, server in of_all]

    def match(self):
        with self.lock:
            for way, sent in self.sent.items() if not self.held else ():
                while sent and self.posted[way]:
                    sending, receiving = sent.pop(0), self.posted[way].pop(0)
                    data = sending.array.clone()
                    self.cut += len(data) > len(receiving.array)
                    receiving.data = data[: len(receiving.array)]
                    end = len(receiving.data)
                    sending.matched.set()
                    receiving.matched.set()  # before it can be seen
                    for part in (slice(BORDER), slice(end - BORDER, end)):
                        receiving.array[part] = receiving.data[part]


class Group:
    def __init__(self, rank, net):
        self.own, self.net, self.error = rank, net, None

    def rank(self):
        return self.own

    def send(self, tensors, peer, stream):
        if self.error:
            raise self.error
        work = Work(tensors[0], self.net)
        with self.net.lock:
            self.net.all_sent.append(work)
            self.net.sent[self.own, peer, stream].append(work)
        self.net.match()
        return work

    def recv(self, tensors, peer, stream):
        work = Work(tensors[0], self.net)
        with self.net.lock:
            self.net.posted[peer, self.own, stream].append(work)
        self.net.match()
        return work


@pytest.fixture
def make_net(monkeypatch):
    """Frames are what a frame of an empty message was in: whoever takes it for one waits too early."""
    monkeypatch.setattr(c10d, "_FAREWELL", datetime.timedelta(seconds=0.2))
    monkeypatch.setattr(c10d._Server, "_end_waits", lambda server: None)
    made = []

    def empty(size, dtype):
        made.append(torch.ones((size + 7) // 8, dtype=torch.int64).view(dtype)[:size])
        return made[-1]

    monkeypatch.setattr(torch, "empty", empty)
    nets = []

    def make(world=2):
        nets.append(Net(world))
        nets[-1].frames = made
        return nets[-1]

    yield make
    for net in nets:
        net.held = False
        net.match()
        for server in net.servers:
            server.close()


@pytest.mark.parametrize("broken", [False, True])
def test_messages_arrive(make_net, broken):
    """Also where a wait for what has come says that the connection has failed since."""
    net = make_net()
    first, second = net.comms()
    for count in (1, 1000, 10_000):
        net.broken = broken
        got = np.zeros(count)
        work = second.recv(got, 0, async_op=True)
        first.send(np.arange(float(count)), 1, async_op=True)
        work.wait()
        assert np.array_equal(got, np.arange(count))
    assert net.early == net.cut == 0


def lines_of_data(net):
    """How much is kept of each: what Gloo may still read."""
    return [
        len(kept)
        for server in net.servers
        for (_, stream), kept in list(server._under_way.items())
        if stream % 2 == 0
    ]


def test_frames_are_received_into_again_and_lines_of_data_end(make_net):
    net = make_net()
    first, second = net.comms()
    for _ in range(60):
        exchange(first, second, 1000)
    assert len(net.frames) < 30
    assert max(lines_of_data(net)) <= 4
    both([first.close, second.close])
    comes(lambda: not lines_of_data(net))


def test_no_more_is_under_way_on_a_line_than_gloo_is_told_to_keep(make_net):
    net = make_net()
    first, _ = net.comms()
    net.held = True
    for _ in range(c10d._MOST_UNDER_WAY + 50):
        with pytest.raises(errors.InvalidArgumentError):
            first.reduce(np.zeros(1), 2)
    comes(lambda: any(work.asked for work in net.all_sent))
    assert max(len(of_line) for of_line in net.sent.values()) == c10d._MOST_UNDER_WAY


def test_the_end_waits_until_what_was_sent_has_left(make_net):
    net = make_net()
    first, _ = net.comms()
    net.held = True
    for _ in range(3):
        first.send(np.ones(1), 1)
    comes(lambda: len(net.all_sent) >= 3)
    net.servers[0].close()
    assert any(work.asked for work in net.all_sent)


def test_what_nobody_wants_is_received_as_long_as_it_is(make_net):
    """Of a large world's ranks less than of a small one's."""
    net = make_net()
    _other, of_a_large_world = net.comms(0, 9)
    of_a_large_world.close()
    first, second = net.comms(1, 2)
    first.send(np.ones(25_000), 1, async_op=True)
    comes(lambda: any(len(work.array) > 200_000 for work in net.all_sent))
    second.close()
    comes(lambda: all(work.matched.is_set() for work in net.all_sent if len(work.array) > 200_000))
    assert net.cut == 0


def test_a_message_that_gloo_does_not_send_is_told(make_net):
    net = make_net()
    first, _ = net.comms()
    net.servers[0]._group.error = RuntimeError("no route")
    with pytest.raises(errors.PeerLostError, match="the connection to rank 1 has failed: no route"):
        for _ in range(4):
            first.send(np.ones(1), 1)


def test_without_a_thread_a_sentence_says_so(monkeypatch, threadless):
    threadless.add(threading.get_ident())
    said = r"^no thread to ask torch's store on: can't start new thread \(ulimit -u\) \(rank 1 of 3\)"
    with pytest.raises(errors.UnavailableError, match=said):
        attempt.all_say("", dist.HashStore(), 1, 3, 5.0, "its process group")
    made = SimpleNamespace(set_timeout=lambda patience: None)
    monkeypatch.setattr(c10d, "gloo_group", lambda *_: made)
    said = r"^no thread to receive on: can't start new thread \(ulimit -u\) \(rank 1 of 3\)$"
    with pytest.raises(errors.UnavailableError, match=said):
        c10d.open_c10d(Ranks(1, 3, "a job", "test"), 5.0, dist.HashStore())


def test_a_group_that_is_never_made_has_a_deadline(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(attempt, "_LATE_S", 0.05)
    monkeypatch.setattr(dist, "ProcessGroupGloo", lambda *_: never.wait(20))
    said = r"^rank 1 of 3: torch's store has not answered within 0\.1 s"
    with pytest.raises(errors.CollectiveTimeoutError, match=said):
        attempt.gloo_group("a name", dist.HashStore(), 1, 3, 0.1)
    never.set()
