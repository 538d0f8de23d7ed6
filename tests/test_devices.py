"""The device made of threads: what streams and events order, and nothing more."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from on_device import HostKit, address, finish, stream_of, wait_for

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError, UnavailableError


@contextlib.contextmanager
def done_stream_of(gpu):
    """At its end, all that it got is done."""
    with stream_of(gpu) as stream:
        yield stream
        finish(gpu.device, stream)


def test_a_stream_keeps_its_order():
    gpu = HostKit(200)
    values = [np.full(1000, float(i)) for i in range(20)]
    target = np.zeros(1000)
    with done_stream_of(gpu) as stream:
        for value in values:
            gpu.device.copy(address(target), address(value), value.nbytes, stream)
    assert (target == 19).all()


def test_streams_wait_for_events_as_they_were_recorded_last():
    gpu = HostKit(300)
    first, second, target = np.ones(10), np.full(10, 2.0), np.zeros(10)
    event = gpu.device.make_event()
    with done_stream_of(gpu) as a, done_stream_of(gpu) as b:
        gpu.device.wait(b, event)  # never recorded: no wait
        gpu.device.copy(address(target), address(first), 80, a)
        gpu.device.record(event, a)
        gpu.device.wait(b, event)
        gpu.device.copy(address(target), address(second), 80, b)
    assert (target == 2).all()
    gpu.device.end_event(event)


def test_a_later_recording_is_not_an_earlier_one():
    """Recorded again on a stream with less to do, an event still holds up who waits for its former time."""
    gpu = HostKit(100_000)
    event, target, values = gpu.device.make_event(), np.zeros(2), np.arange(6.0)
    with done_stream_of(gpu) as a, done_stream_of(gpu) as b, done_stream_of(gpu) as c:
        for i in range(6):
            gpu.device.copy(address(target), address(values[i:]), 8, a)
        gpu.device.record(event, a)
        gpu.device.wait(c, event)
        gpu.device.record(event, b)
        gpu.device.copy(address(target) + 8, address(target), 8, c)
    assert target[1] == 5
    gpu.device.end_event(event)


def test_events_are_recorded_and_streams_used_on_their_own_device():
    """While a stream waits for what another device has recorded: as with CUDA."""
    mine, other = HostKit().device, HostKit(20_000).device
    event, theirs, x, values = mine.make_event(), other.make_event(), np.zeros(1), np.arange(4.0)
    stream, away = mine.make_stream(), other.make_stream()
    for device, wrong_event, on in [(mine, theirs, stream), (other, event, away)]:
        with pytest.raises(UnavailableError, match="the event is one of another host device"):
            device.record(wrong_event, on)
    with pytest.raises(InvalidArgumentError, match="the stream is one of another host device"):
        mine.record(event, away)
    with pytest.raises(InvalidArgumentError, match="the stream is one of another host device"):
        mine.copy(address(x), address(x), 8, away)
    for i in range(4):
        other.copy(address(x), address(values[i:]), 8, away)
    other.record(theirs, away)
    mine.wait(stream, theirs)
    mine.record(event, stream)
    wait_for(mine, event)
    assert other.done(theirs)
    mine.end_event(event), other.end_event(theirs)
    mine.end_stream(stream), other.end_stream(away)


def test_without_an_event_streams_run_as_they_like():
    """What the tests of collectives rely on: a wait that is missing shows."""
    slow, quick = HostKit(200_000), HostKit()
    target, one, two = np.zeros(1), np.ones(1), np.full(1, 2.0)
    with done_stream_of(slow) as a:
        for _ in range(6):
            slow.device.copy(address(target), address(one), 8, a)
        with done_stream_of(quick) as b:
            quick.device.copy(address(target), address(two), 8, b)
        assert target[0] == 2
    assert target[0] == 1


def test_the_host_is_not_blocked_and_events_tell_the_end():
    gpu = HostKit(20000)
    event, x, y = gpu.device.make_event(), np.zeros(4), np.ones(4)
    assert gpu.device.done(event)  # never recorded
    seen = []
    for _ in range(10):
        gpu.device.copy(address(x), address(y), 32)
        gpu.device.record(event)
        seen.append(gpu.device.done(event))
    assert not all(seen)
    wait_for(gpu.device, event)
    assert (x == 1).all()


def refused(text):
    return pytest.raises(UnavailableError, match=text)


def test_captures_refuse_what_cuda_refuses():
    gpu = HostKit()
    with stream_of(gpu) as origin, stream_of(gpu) as joined, stream_of(gpu) as other:
        with refused("the default stream cannot be captured"):
            gpu.begin_capture(0)
        gpu.begin_capture(origin)
        with refused("is being captured already"):
            gpu.begin_capture(origin)
        inside, x = gpu.device.make_event(), np.zeros(1)
        gpu.device.record(inside, origin)
        gpu.device.wait(joined, inside)
        gpu.device.copy(address(x), address(x), 8, joined)
        with refused("no capture has begun on this stream"):
            gpu.end_capture(joined)
        with ThreadPoolExecutor() as pool, refused("another thread has begun the capture"):
            pool.submit(gpu.end_capture, origin).result()
        with refused("does not lead back to the stream that began it"):
            gpu.end_capture(origin)
        with refused("of a capture that has ended"):
            gpu.device.wait(other, inside)
    gpu.device.end_event(inside)


@pytest.mark.parametrize("what", ["outside", "asked", "merged"])
def test_what_is_refused_fails_the_capture(what):
    gpu = HostKit()
    device, inside, outside = gpu.device, *(gpu.device.make_event() for _ in range(2))
    with stream_of(gpu) as origin, stream_of(gpu) as other:
        device.record(outside, other)
        gpu.begin_capture(origin)
        device.record(inside, origin)
        if what == "merged":
            gpu.begin_capture(other)
            with refused("two captures cannot be merged"):
                device.wait(other, inside)
            with refused("the capture has failed"):
                gpu.end_capture(other)
        elif what == "asked":
            with refused("the event was recorded in a capture"):
                device.done(inside)
        else:
            with refused("cannot wait for what is not"):
                device.wait(origin, outside)
        for call in (lambda: device.record(inside, origin), lambda: gpu.end_capture(origin)):
            with refused("the capture has failed"):
                call()
        device.record(inside, origin)
        wait_for(device, inside)
    device.end_event(inside), device.end_event(outside)


def test_a_graph_runs_in_any_order_that_it_allows():
    """As streams without an event do: a wait that is missing shows."""
    gpu, target, values, found = HostKit(), np.zeros(1), np.arange(3.0), set()
    forks, joins = (gpu.device.make_event() for _ in range(2))
    with stream_of(gpu) as origin, stream_of(gpu) as joined:
        gpu.begin_capture(origin)
        gpu.device.record(forks, origin)
        gpu.device.wait(joined, forks)
        for stream, value in ((origin, values[1:]), (joined, values[2:])):
            gpu.device.copy(address(target), address(value), 8, stream)
        gpu.device.record(joins, joined)
        gpu.device.wait(origin, joins)
        graph = gpu.end_capture(origin)
        for _ in range(40):
            gpu.launch(graph, origin)
            finish(gpu.device, origin)
            found.add(float(target[0]))
    assert found == {1, 2}
    gpu.device.end_event(forks), gpu.device.end_event(joins)


def test_events_that_have_ended_are_in_no_capture():
    """Later ones may have their handles."""
    gpu = HostKit()
    with stream_of(gpu) as stream:
        gpu.begin_capture(stream)
        events = [gpu.device.make_event() for _ in range(50)]
        for event in events:
            gpu.device.record(event, stream)
        for event in events:
            gpu.device.end_event(event)
        later = [gpu.device.make_event() for _ in range(50)]
        assert all(gpu.device.done(event) for event in later)
        gpu.end_capture(stream)
    for event in later:
        gpu.device.end_event(event)


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_a_fold_has_several_destinations(count):
    gpu = HostKit()
    rng = np.random.default_rng(1)
    sources = [rng.standard_normal(count).astype(np.float32) for _ in range(3)]
    expected = _core.reduce("float32", "sum", sources, 3)
    other = np.zeros(count, np.float32)
    with done_stream_of(gpu) as stream:
        places = [address(s) for s in sources]
        gpu.device.reduce("float32", "sum", [places[1], address(other)], places, count, 3, stream)
    assert np.array_equal(sources[1], expected) and np.array_equal(other, expected)


def test_dlpack_tells_the_device():
    gpu = HostKit()
    array = gpu.array(np.zeros((2, 3)))
    kind, number = array.__dlpack_device__()
    assert kind == 12 and gpu.array(np.ones(1)).__dlpack_device__() == (12, number)
    assert HostKit().array(np.ones(1)).__dlpack_device__()[1] != number
