"""Collectives that are captured into a graph: launched again, they do with new values what calls do."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
from conftest import ROOTED, pairs
from on_device import Racing, finish, stream_of
from ranks import TIMEOUT_S, outcomes_of, run_ranks
from test_collectives import inputs
from test_device_collectives import call, has_result

from gpucomm.errors import ClosedError, Error, InvalidArgumentError, PeerLostError

ROUNDS = 3
CASES = [(*pair, None) for pair in pairs()]
CASES += [(*pair, codec) for pair in pairs(coded=True) for codec in ("int8", "mpc")]


class Capture:
    """One capture of all ranks' streams, by rank 0, whose stream the others fork from and lead back to."""

    def __init__(self, kit, world):
        self.kit, self.barrier = kit, threading.Barrier(world, timeout=TIMEOUT_S)
        self.origin = self.graph = None
        self.events = [kit.device.make_event() for _ in range(world + 1)]

    def _meet(self):
        self.barrier.wait()

    @contextlib.contextmanager
    def of(self, rank, stream):
        device = self.kit.device
        self._meet()
        if rank == 0:
            self.origin = stream
            self.kit.begin_capture(stream)
            device.record(self.events[-1], stream)
        self._meet()
        if rank:
            device.wait(stream, self.events[-1])
        yield
        if rank:
            device.record(self.events[rank], stream)
        self._meet()
        if rank == 0:
            for event in self.events[1:-1]:
                device.wait(stream, event)
            self.graph = self.kit.end_capture(stream)
        self._meet()

    def launch(self, rank):
        """All ranks' work, behind what they have enqueued; every rank calls it, and may read after it."""
        self._meet()
        if rank == 0:
            self.kit.launch(self.graph, self.origin)
            event = self.events[-1]
            self.kit.device.record(event, self.origin)
        self._meet()

    def end(self):
        for event in self.events:
            self.kit.device.end_event(event)


class Again(Racing):
    """Arrays that are made before they are captured, of values that change between the launches."""

    def __init__(self, kit, stream):
        super().__init__(kit, stream)
        self.made = None  # what is handed out once more
        self.sources = []

    def make(self, values):
        return super().make(values) if self.made is None else next(self.made)

    def array(self, values):
        count = len(self.kept)
        target = super().array(values)
        if self.made is None:
            self.sources.append(self.kept[count])
        return target

    def twice(self, work):
        """Does it once as it is, which makes the arrays; what is returned does it again with the same."""
        work(self)
        self.finish()
        self.made = iter(list(self.kept))
        return work

    def give(self, *values):
        for source, new in zip(self.sources, values, strict=True):
            self._copy(source, super().make(new.copy()), new.nbytes)
        self.finish()


def launched(kit, world, prepare):
    """By rank: of each round what the graph gave, and what calls in host memory give.

    `prepare(comm)`: what a rank captures, given its arrays, and what it gets for the values of a round.
    """
    capture = Capture(kit, world)

    def body(comm):
        work, values, expected = prepare(comm)
        right = [expected(*some) for some in values]
        with stream_of(kit) as stream:
            again = Again(kit, stream)
            work = again.twice(work)
            with capture.of(comm.rank, stream):
                reading = work(again)
            found = []
            for some in values:
                again.give(*some)
                capture.launch(comm.rank)
                kit.device.wait(stream, capture.events[-1])
                found.append(None if reading is None else again.found(reading).copy())
                capture.barrier.wait()
        return found, right

    results = run_ranks(world, body)
    capture.end()
    return results


def assert_same(results):
    for found, right in results:
        for got, wanted in zip(found, right, strict=True):
            assert wanted is None or np.array_equal(got, wanted)


@pytest.mark.parametrize(("collective", "algorithm", "codec"), CASES)
def test_every_algorithm(collective, algorithm, codec, make_kit):
    """Launched three times with other values: the bits of calls in host memory."""
    world, root, kit = 3, 1, make_kit()
    how = {"algorithm": algorithm, "segments": 2} | ({"codec": codec} if codec else {})

    def prepare(comm):
        x = inputs(collective, "float32", world, 3000)[comm.rank]
        values = [(x * (n + 1),) for n in range(ROUNDS)]

        def work(again):
            result = call(comm, again, collective, x, root, **how)
            return again.read(result) if has_result(collective, comm.rank, root) else None

        def expected(y):
            places = (y.copy(), root) if collective in ROOTED else (y.copy(),)
            result = getattr(comm, collective)(*places, **how)
            return result if has_result(collective, comm.rank, root) else None

        return work, values, expected

    assert_same(launched(kit, world, prepare))


@pytest.mark.parametrize("world", [1, 4])
def test_calls_that_follow_each_other(world, make_kit):
    """A factor, a list and an asynchronous call, on each other's results, in scratch that grows."""
    kit = make_kit()

    def steps(comm, x, array, **options):
        comm.all_reduce(x, "premul_sum", scale=0.5, algorithm="direct", segments=1, **options)
        comm.all_reduce([x, array], algorithm="ring", segments=1, **options)
        work = comm.all_reduce(x, "max", algorithm="ring", segments=1, async_op=True, **options)
        work.wait()
        return comm.all_reduce(x, "mean", codec="int8", algorithm="coded_ring", segments=2, **options)

    def prepare(comm):
        rng = np.random.default_rng(comm.rank)
        values = [
            tuple(rng.standard_normal(n).astype(np.float32) for n in (70_000, 11)) for _ in range(ROUNDS)
        ]

        def work(again):
            x, y = (again.array(z) for z in values[0])
            return again.read(steps(comm, x, y, stream=again.stream))

        return work, values, lambda x, y: steps(comm, x.copy(), y.copy())

    assert_same(launched(kit, world, prepare))


def test_calls_between_launches(make_kit):
    """The graph keeps its scratch when that is outgrown, and other calls theirs."""
    world, kit = 3, make_kit()
    capture = Capture(kit, world)
    how = {"codec": "int8", "algorithm": "coded_ring", "segments": 1}

    def body(comm):
        x, large = (np.full(n, comm.rank + 1.0, np.float32) for n in (500, 300_000))
        right, right_large = (comm.all_reduce(y.copy(), **how) for y in (x, large))
        with stream_of(kit) as stream:
            racing, again = Racing(kit, stream), Again(kit, stream)
            work = again.twice(lambda a: a.read(comm.all_reduce(a.array(x), stream=stream, **how)))
            with capture.of(comm.rank, stream):
                reading = work(again)
            for _ in range(2):
                found = racing.found(racing.read(comm.all_reduce(racing.array(large), stream=stream, **how)))
                assert np.array_equal(found, right_large)
                capture.launch(comm.rank)
                kit.device.wait(stream, capture.events[-1])
                assert np.array_equal(again.found(reading), right)
                capture.barrier.wait()

    run_ranks(world, body)
    capture.end()


@pytest.mark.parametrize("how", [{"algorithm": "ring"}, {"algorithm": "coded_ring", "codec": "bf16"}])
def test_a_launch_beside_a_call_under_way(how, make_kit):
    """On one stream, of other arrays: no scratch is common to both."""
    world, kit = 3, make_kit(300)
    capture = Capture(kit, world)
    count = 30_000

    def body(comm):
        coded = "codec" in how
        some, others = ([kit.array(np.zeros(n, np.float32)) for n in (count, 7)] for _ in range(2))

        sources = [
            [kit.array(np.full(count, k * n + comm.rank, np.float32)) for k in (1, 2)] for n in range(10)
        ]

        def sums(xs, **options):
            return comm.all_reduce(xs[0] if coded else xs, stream=stream, segments=1, **how, **options)

        with stream_of(kit) as stream:
            for xs in (some, others):
                sums(xs, async_op=True).synchronize()
            with capture.of(comm.rank, stream):
                sums(some)
            for n in range(10):
                for xs, values in zip((some, others), sources[n], strict=True):
                    kit.device.copy(kit.address(xs[0]), kit.address(values), 4 * count, stream)
                finish(kit.device, stream)  # the launch is on another rank's
                work = sums(others, async_op=True)
                capture.launch(comm.rank)
                kit.device.wait(stream, capture.events[-1])
                work.wait()
                finish(kit.device, stream)
                for xs, value in ((some, 3 * n + 3), (others, 6 * n + 3)):
                    assert (kit.host(xs[0]) == value).all(), (n, kit.host(xs[0])[:3], value)
                capture.barrier.wait()

    run_ranks(world, body)
    capture.end()


def test_the_host_cannot_ask_for_what_was_captured(make_kit):
    kit = make_kit()
    capture = Capture(kit, 2)

    def body(comm):
        with stream_of(kit) as stream:
            x = kit.array(np.ones(5, np.float32))
            with capture.of(comm.rank, stream):
                work = comm.all_reduce(x, async_op=True, stream=stream)
                work.wait()
            for ask in (work.done, work.synchronize):
                with pytest.raises(InvalidArgumentError, match="captured into a graph, whose launches tell"):
                    ask()

    run_ranks(2, body)
    capture.end()


@pytest.mark.parametrize("both", [False, True])
def test_streams_of_different_captures(both, make_kit):
    """Two graphs, or a graph and none: refused on all ranks before anything is enqueued."""
    kit, barrier = make_kit(), threading.Barrier(2, timeout=TIMEOUT_S)

    def body(comm):
        x = kit.array(np.full(5, comm.rank + 1.0))
        with stream_of(kit) as stream:
            captures = both or comm.rank == 0
            barrier.wait()
            if captures:
                kit.begin_capture(stream)
            barrier.wait()
            try:
                comm.all_reduce(x, stream=stream)
            finally:
                barrier.wait()
                if captures:
                    kit.end_capture(stream)

    errors = outcomes_of(2, body)
    assert all(isinstance(e, (InvalidArgumentError, PeerLostError, ClosedError)) for e in errors), errors
    assert any("streams of ranks 0 and 1 of 2 are not in one capture of a graph" in str(e) for e in errors)


def test_a_call_beside_an_open_capture(make_kit):
    """What follows a captured call cannot be elsewhere while the capture is open."""
    kit = make_kit()
    capture = Capture(kit, 2)

    def body(comm):
        x, y = (kit.array(np.ones(5, np.float32)) for _ in range(2))
        with stream_of(kit) as stream, stream_of(kit) as other, capture.of(comm.rank, stream):
            comm.all_reduce(x, stream=stream)
            try:
                comm.all_reduce(y, stream=other)
            except Error as error:
                return str(error)

    for text in run_ranks(2, body):
        assert "an earlier call of this communicator is in a capture of a graph" in text
    capture.end()


def test_a_stream_waits_for_a_call_of_its_own_capture_only(make_kit):
    kit = make_kit()
    capture = Capture(kit, 2)

    def body(comm):
        x, y = (kit.array(np.ones(5, np.float32)) for _ in range(2))
        with stream_of(kit) as stream:
            before = comm.all_reduce(x, async_op=True, stream=stream)
            with capture.of(comm.rank, stream):
                with pytest.raises(InvalidArgumentError, match="a graph of which the call is no part"):
                    before.wait()
                work = comm.all_reduce(y, async_op=True, stream=stream)
                work.wait()
            with pytest.raises(InvalidArgumentError, match=r"tell when it has run: wait\(\) in"):
                work.wait()
            return float(kit.host(before.synchronize())[0])

    assert run_ranks(2, body) == [2.0, 2.0]
    capture.end()


def test_the_host_waits_for_an_earlier_call_while_a_graph_is_captured(make_kit):
    kit = make_kit()
    capture = Capture(kit, 2)

    def body(comm):
        x = kit.array(np.ones(5, np.float32))
        with stream_of(kit) as stream, stream_of(kit) as other:
            work = comm.all_reduce(x, async_op=True, stream=other)
            with capture.of(comm.rank, stream):
                return work.synchronize()

    results = run_ranks(2, body)
    capture.end()
    assert [float(kit.host(x)[0]) for x in results] == [2.0, 2.0]


def test_a_stream_of_two_ranks_of_which_one_waits(make_kit):
    """Scratch is made by the thread that captures."""
    kit, barrier = make_kit(), threading.Barrier(2, timeout=TIMEOUT_S)
    x, y = (kit.array(np.full(3000, value, np.float32)) for value in (1, 2))
    how = {"algorithm": "coded_ring", "codec": "bf16"}

    def body(comm):
        if comm.rank == 0:
            barrier.wait()
            work = comm.all_reduce(x, stream=stream, async_op=True, **how)
            barrier.wait()
            barrier.wait()
            return work
        kit.begin_capture(stream)
        barrier.wait()
        barrier.wait()
        try:
            comm.all_reduce(y, stream=stream, **how)
        finally:
            graph = kit.end_capture(stream)
            barrier.wait()
        kit.launch(graph, stream)
        finish(kit.device, stream)

    with stream_of(kit) as stream:
        run_ranks(2, body)
    assert (kit.host(x) == 3).all() and (kit.host(y) == 3).all()


def test_a_capture_that_begins_after_an_asynchronous_call(make_kit):
    """The other rank comes to that call while this one's stream is captured."""
    kit, barrier = make_kit(), threading.Barrier(2, timeout=TIMEOUT_S)

    def body(comm):
        x = kit.array(np.full(10, comm.rank + 1.0))
        with stream_of(kit) as stream:
            comm.all_reduce(x, async_op=True, stream=stream).synchronize()
            if comm.rank == 0:
                work = comm.all_reduce(x, async_op=True, stream=stream)
                kit.begin_capture(stream)
            barrier.wait()
            if comm.rank:
                work = comm.all_reduce(x, async_op=True, stream=stream)
            barrier.wait()
            if comm.rank == 0:
                kit.end_capture(stream)
            barrier.wait()
            work.synchronize()
            return float(kit.host(x)[0])

    assert run_ranks(2, body) == [6.0, 6.0]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (lambda comm, x, stream: comm.all_reduce(x, codec="fixed:1e-3", stream=stream), "largest magnitude"),
        (lambda comm, x, stream: comm.all_reduce(x, max_rel_err=0.1, stream=stream), "reads norms"),
        (lambda comm, x, stream: comm.send(x, 1, stream=stream), "messages cannot be"),
    ],
)
def test_what_no_graph_takes(what, text, make_kit):
    """What the host has to wait for; the communicator stays open."""
    kit, barrier = make_kit(), threading.Barrier(2, timeout=TIMEOUT_S)

    def body(comm):
        x = kit.array(np.ones(10_000, np.float32))
        barrier.wait()  # no array is made while a stream is captured
        if comm.rank == 0:
            with stream_of(kit) as stream:
                kit.begin_capture(stream)
                with pytest.raises(InvalidArgumentError, match=text):
                    what(comm, x, stream)
                kit.end_capture(stream)
        return float(kit.host(comm.all_reduce(x, async_op=True).synchronize())[0])

    assert run_ranks(2, body) == [2.0, 2.0]
