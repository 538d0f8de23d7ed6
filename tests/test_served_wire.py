"""Ranks of two nodes over a wire that this process serves as Gloo would, late where a test wants that."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch.distributed as dist

from gpucomm import Communicator, _core, errors
from gpucomm.launch import fabric, store
from gpucomm.launch.ranks import Ranks


class Net:
    """The wires of two ranks. `torn`: messages lack their last bytes until they are mended."""

    def __init__(self):
        self.wires = [_core.ServedWire(), _core.ServedWire()]
        self.torn, self.early = False, 0  # what was said to be here before it was
        self._changed = threading.Condition()
        self._sent = defaultdict(list)  # (from, to, stream) -> (bytes, whether it was received)
        self._posted = defaultdict(list)  # ... -> (request, frame)
        self._whole = {}  # request -> what its frame will hold
        self._frames = defaultdict(list)
        self.lines = [set(), set()]  # by which a rank receives: (peer, stream) of each
        self.held = []  # whose thread waits until a message is received
        self.deaf = False  # nobody hears what is said beside messages
        self.claims = None  # bytes that a chunk says it has
        for rank in range(2):
            threading.Thread(target=self._serve, args=(rank,), daemon=True).start()

    def comm(self, rank, context=0, timeout=20.0):
        wire = self.wires[rank]
        return Communicator("c10d", rank, 2, wire=wire, nodes=[0, 1], context=context, timeout=timeout)

    def pair(self, context=0):
        return [self.comm(rank, context) for rank in range(2)]

    def mend(self):
        with self._changed:
            self.torn = False
            for frame, data in self._whole.values():
                frame[: len(data)] = data

    def _serve(self, me):
        wire = self.wires[me]
        while (event := wire.next_event()) is not None:
            request, line = event.request, event.line
            if event.kind == "line":
                threading.Thread(target=self._send, args=(me, line), daemon=True).start()
            elif event.kind == "come":
                frame, data = self._whole.pop((me, request))
                self.early += not np.array_equal(frame[: len(data)], data)
                frame[: len(data)] = data
                wire.finish_receive(request)
                self._frames[len(frame)].append(frame)
            else:
                free = self._frames[event.frame_bytes]
                again = free and event.kind == "receive"
                frame = free.pop() if again else np.zeros(event.frame_bytes, np.uint8)
                wire.prepare(frame)
                self.lines[me].add(line)
                if event.kind == "receive":
                    wire.started(request, frame)
                with self._changed:
                    self._posted[line.peer, me, line.stream].append((request, frame))
                    self._match(line.peer, me, line.stream)

    def _send(self, me, line):
        wire, way = self.wires[me], (me, line.peer, line.stream)
        while (frame := wire.next_send(line)) is not None and not frame.last:
            received, data = threading.Event(), np.array(frame.data, np.uint8)
            if self.claims and line.stream % 2 == 0:
                data[16:24] = np.array([self.claims], np.uint64).view(np.uint8)
            with self._changed:
                self._sent[way].append((data, received))
                self._match(*way)
            if frame.matched:
                self.held.append(line)
                received.wait(20)
                self.held.remove(line)
                wire.finish_send(frame.request)

    def _match(self, *way):
        while self._sent[way] and self._posted[way] and not (self.deaf and way[2] % 2):
            (data, received), (request, frame) = self._sent[way].pop(0), self._posted[way].pop(0)
            self._whole[way[1], request] = frame, data
            here = len(data) - 8 * (self.torn and len(frame) > 1 << 14)
            frame[:here] = data[:here]
            received.set()


@pytest.fixture
def net():
    net = Net()
    yield net
    for wire in net.wires:
        wire.close()


def both(calls):
    """What the calls return, each in a thread."""
    found = [None] * len(calls)

    def make(i):
        found[i] = calls[i]()

    threads = [threading.Thread(target=make, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return found


def comes(holds):
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def exchange(first, second, count):
    """A message from rank 0 to rank 1."""
    got = np.zeros(count)
    works = [second.recv(got, 0, async_op=True), first.send(np.arange(float(count)), 1, async_op=True)]
    for work in works:
        work.wait()
    assert np.array_equal(got, np.arange(count))


def test_messages_arrive(net):
    for context in range(3):
        first, second = net.pair(context)
        for count in (0, 1, 1000, 500_000):
            exchange(first, second, count)
        both([first.close, second.close])
    assert net.early == 0


def test_who_sends_runs_not_far_ahead_of_a_receiver_that_does_not_come(net):
    """One message in every turn of the ring ends only when it is received."""
    first, _second = net.pair()
    for _ in range(3):
        first.send(np.ones(1), 1)
    with pytest.raises(errors.CollectiveTimeoutError):
        first.send(np.ones(1), 1, timeout=0.1)


def test_what_a_frame_held_before_is_not_taken_for_what_comes(net):
    """Another communicator's first message, as long as this one's."""
    for context in range(2):
        first, second = net.pair(context)
        net.torn = context == 1
        got = np.zeros(10)
        work = second.recv(got, 0, async_op=True)
        first.send(np.full(10, context + 1.0), 1)
        deadline = time.monotonic() + 0.1  # rank 1 looks many times
        while net.torn and time.monotonic() < deadline:
            assert not work.done() and not net.early
        net.mend()
        work.wait()
        assert (got == context + 1).all() and not net.early
        both([first.close, second.close])


@pytest.mark.parametrize("numbers", [[0, 1], [1, 0]])
def test_a_connection_that_fails_is_told_to_who_waits_for_it(net, numbers):
    """By its rank in the group, whatever the wire's number of that is."""
    mine = numbers[0]
    first = Communicator("c10d", 0, 2, wire=net.wires[mine], nodes=[0, 1], context=0, wire_ranks=numbers)
    work = first.recv(np.zeros(10), 1, async_op=True)
    comes(lambda: net.lines[mine])
    for line in net.lines[mine]:
        net.wires[mine].fail(line, "cut")
    with pytest.raises(errors.PeerLostError, match="the connection to rank 1 has failed: cut"):
        work.wait()


def test_who_has_left_takes_what_others_still_send(net):
    """Else the thread that sends would wait for ever."""
    first, second = net.pair()
    works = [first.send(np.ones(1), 1, async_op=True) for _ in range(8)]
    second.recv(np.zeros(1), 0)
    comes(lambda: net.held)
    second.close()
    comes(lambda: not net.held)
    with pytest.raises(errors.PeerLostError, match="rank 1 has closed its communicator"):
        works[-1].wait()
        first.recv(np.zeros(1), 1)


def test_who_has_left_takes_as_much_as_others_send_before_they_hear_of_it(net):
    first, second = net.pair()
    net.deaf = True
    works = [first.send(np.ones(1), 1, async_op=True) for _ in range(8)]
    comes(lambda: net.held)
    second.close()
    for work in works:
        work.wait(10)


def test_a_chunk_that_is_longer_than_ours_is_refused(net):
    first, second = net.pair()
    net.claims = 1 << 20
    first.send(np.ones(1), 1)
    said = "a message from rank 0 is cut into chunks of 1048576 bytes, ours hold 262144: do all ranks run"
    with pytest.raises(errors.MismatchError, match=said):
        second.recv(np.zeros(1), 0)


def test_a_wire_is_closed_whose_ranks_did_not_meet(monkeypatch):
    """By a group of torch.distributed, which may try again over another."""

    def connect(*_):
        raise errors.CollectiveTimeoutError("nobody came")

    closed = []
    over = SimpleNamespace(close=lambda: closed.append(True))
    monkeypatch.setattr(store, "open_c10d", lambda *_: over)
    monkeypatch.setattr(fabric, "connect", connect)
    seat = store.Seat(1, range(2), 2, 5.0)
    with pytest.raises(errors.CollectiveTimeoutError, match="nobody came"):
        store._between_nodes(seat, Ranks(1, 2, "job", "store"), dist.HashStore(), lambda: 5.0)
    assert closed == [True]
