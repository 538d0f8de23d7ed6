"""The device made of threads: what streams and events order, and nothing more."""

from __future__ import annotations

import numpy as np
import pytest
from on_device import HostKit, address, stream_of, wait_for

from gpucomm import _core


def test_a_stream_keeps_its_order():
    gpu = HostKit(200)
    values = [np.full(1000, float(i)) for i in range(20)]
    target = np.zeros(1000)
    with stream_of(gpu) as stream:
        for value in values:
            gpu.device.copy(address(target), address(value), value.nbytes, stream)
    assert (target == 19).all()


def test_streams_wait_for_events_as_they_were_recorded_last():
    gpu = HostKit(300)
    first, second, target = np.ones(10), np.full(10, 2.0), np.zeros(10)
    event = gpu.device.make_event()
    with stream_of(gpu) as a, stream_of(gpu) as b:
        gpu.device.wait(b, event)  # never recorded: no wait
        gpu.device.copy(address(target), address(first), 80, a)
        gpu.device.record(event, a)
        gpu.device.wait(b, event)
        gpu.device.copy(address(target), address(second), 80, b)
    assert (target == 2).all()
    gpu.device.end_event(event)


def test_a_later_recording_is_not_an_earlier_one():
    """Recorded again on a quicker stream, an event still holds up who waits for its former time."""
    slow, quick = HostKit(100_000), HostKit()
    event, target, one = quick.device.make_event(), np.zeros(2), np.ones(1)
    with stream_of(quick) as b, stream_of(quick) as c, stream_of(slow) as a:
        for _ in range(5):
            slow.device.copy(address(target), address(one), 8, a)
        slow.device.record(event, a)
        quick.device.wait(c, event)
        quick.device.record(event, b)
        quick.device.copy(address(target) + 8, address(target), 8, c)
    assert target[1] == 1
    quick.device.end_event(event)


def test_without_an_event_streams_run_as_they_like():
    """What the tests of collectives rely on: a wait that is missing shows."""
    slow, quick = HostKit(200_000), HostKit()
    target, one, two = np.zeros(1), np.ones(1), np.full(1, 2.0)
    with stream_of(slow) as a:
        for _ in range(6):
            slow.device.copy(address(target), address(one), 8, a)
        with stream_of(quick) as b:
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


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_a_fold_has_several_destinations(count):
    gpu = HostKit()
    rng = np.random.default_rng(1)
    sources = [rng.standard_normal(count).astype(np.float32) for _ in range(3)]
    expected = _core.reduce("float32", "sum", sources, 3)
    other = np.zeros(count, np.float32)
    with stream_of(gpu) as stream:
        places = [address(s) for s in sources]
        gpu.device.reduce("float32", "sum", [places[1], address(other)], places, count, 3, stream)
    assert np.array_equal(sources[1], expected) and np.array_equal(other, expected)


def test_dlpack_tells_the_device():
    gpu = HostKit()
    array = gpu.array(np.zeros((2, 3)))
    kind, number = array.__dlpack_device__()
    assert kind == 12 and gpu.array(np.ones(1)).__dlpack_device__() == (12, number)
    assert HostKit().array(np.ones(1)).__dlpack_device__()[1] != number
