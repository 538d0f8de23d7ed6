"""Emulated links: what is measured on them is what the cost model says."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import rank_processes
from ranks import PROMPT_S

import gpucomm
from gpucomm import Communicator, _core
from gpucomm.cost import cost
from gpucomm.links import parse_model

MBIT = 8e-6  # seconds a byte at 1 Mbit/s
ALPHA, LATENCY = 50e-6, 500e-6
REPEATS = 3


def spans(world: int, fn, repeats: int = REPEATS, **links) -> list[float]:
    """Seconds from the first rank's start to the last one's end of fn(comm, repeat), several times."""
    region, together = _core.Region(world), threading.Barrier(world, timeout=30)
    begins, ends = np.zeros((2, repeats, world))
    errors = []

    def body(rank: int) -> None:
        try:
            with Communicator("local", rank, world, region=region, timeout=20, **links) as comm:
                for i in range(repeats):
                    together.wait()
                    begins[i, rank] = time.monotonic()
                    fn(comm, i)
                    ends[i, rank] = time.monotonic()
                together.wait()
        except Exception as error:
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return [float(ends[i].max() - begins[i].min()) for i in range(repeats)]


def holds(measure, expected: float, tolerance: float = 0.05) -> None:
    """The median of what `measure()` returns is as expected; a suspect cell is measured once more."""
    medians = []
    for _ in range(2):
        medians.append(statistics.median(measure()))
        if abs(medians[-1] / expected - 1) <= tolerance:
            return
    pytest.fail(f"measured {medians} s, the model says {expected} s")


CELLS = [
    ("broadcast", "linear_pipeline", 16),
    ("reduce", "linear_pipeline", 16),
    ("all_reduce", "linear_pipeline", 8),
    ("all_reduce", "ring", 1),
    ("all_reduce", "ring", 4),
    ("broadcast", "binomial_tree", 1),
    ("reduce", "binomial_tree", 1),
    ("all_reduce", "binomial_tree", 1),
    ("all_reduce", "direct", 1),
    ("all_reduce", "direct", 4),
    ("all_reduce", "one_shot", 1),
    ("all_reduce", "one_shot", 4),
    ("all_gather", "direct", 1),
    ("reduce_scatter", "direct", 1),
    ("all_to_all", "direct", 1),
]


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["switch", "chain"])
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize(("collective", "algorithm", "segments"), CELLS)
def test_the_time_is_the_models(kind, world, collective, algorithm, segments):
    links = _core.Links(kind, alpha=ALPHA, beta=MBIT / 200, lambda_=LATENCY)
    as_the_model(collective, algorithm, world, links, segments)


def as_the_model(collective: str, algorithm: str, world: int, links: _core.Links, segments: int = 1) -> None:
    """A call on a MiB takes as long on emulated links as the model says."""
    count = (1 << 18) // world * world
    model = cost(collective, algorithm, world=world, nbytes=4 * count, links=links, segments=segments)
    assert model > 0.010
    x = np.ones((world, count // world if collective == "all_gather" else count), np.float32)

    def call(comm, _):
        getattr(comm, collective)(x[comm.rank], algorithm=algorithm, segments=segments)

    holds(lambda: spans(world, call, links=links), model)


FAST, SLOW = MBIT / 200, MBIT / 50
OWN_RATES = [
    ("switch", {"betas": [FAST, FAST, SLOW, FAST]}),
    ("chain", {"betas": [FAST, SLOW, FAST]}),
    ("nodes", {"betas": [FAST, SLOW], "nodes": [0, 0, 1, 1]}),
    ("nodes", {"nodes": [0, 0, 1, 1]}),
    ("nodes", {"nodes": [0, 0, 0, 1]}),
]


@pytest.mark.timing
@pytest.mark.parametrize(("kind", "more"), OWN_RATES)
@pytest.mark.parametrize(
    ("collective", "algorithm", "segments"),
    [
        ("broadcast", "linear_pipeline", 16),
        ("all_reduce", "ring", 1),
        ("all_reduce", "direct", 1),
        ("all_reduce", "hierarchical", 1),
        ("broadcast", "hierarchical", 4),
    ],
)
def test_rates_of_their_own(kind, more, collective, algorithm, segments):
    if algorithm == "hierarchical" and kind != "nodes":
        pytest.skip("for nodes")
    links = _core.Links(kind, alpha=ALPHA, beta=FAST, lambda_=LATENCY, **more)
    as_the_model(collective, algorithm, 4, links, segments)


@pytest.mark.timing
def test_a_script_changes_the_rate():
    """Half the rate from 0.4 s on: each of the calls, back to back, takes what holds when it starts."""
    links = _core.Links("switch", alpha=0.0, beta=MBIT / 400)
    x = np.ones((2, 1 << 18), np.float32)
    once, change = x[0].nbytes * links.beta, 0.4

    def call(comm, i):
        started[i, comm.rank] = time.monotonic_ns() - comm.emulation["began"]
        comm.all_reduce(x[comm.rank], algorithm="one_shot", segments=1)

    for _ in range(2):
        started = np.zeros((40, 2))
        found = np.array(
            spans(2, call, 40, links=links, script=[(change, [2 * links.beta] * 2, 0.0, 0.0, 0.0)])
        )
        begun = started.min(axis=1) * 1e-9
        before, after = found[begun + once < change], found[begun > change]
        assert len(before) >= 5 and len(after) >= 5
        ratios = np.median(before) / once, np.median(after) / once
        if ratios == pytest.approx((1, 2), rel=0.05):
            return
    pytest.fail(f"before and after the change {ratios} times what the first rate gives, 1 and 2 expected")


@pytest.mark.timing
def test_a_script_changes_overhead_and_latency():
    """A ping-pong before the change and after it; messages of no length to speak of."""
    links = _core.Links("switch", alpha=1e-3, beta=0.0, lambda_=2e-3)
    x, change = np.ones((2, 64), np.float32), 0.4
    before, after = 2 * (1e-3 + 2e-3), 2 * (4e-3 + 8e-3)

    def ping_pong(comm, i):
        started[i, comm.rank] = time.monotonic_ns() - comm.emulation["began"]
        for root in (0, 1):
            comm.broadcast(x[comm.rank], root, algorithm="binomial_tree", segments=1)

    for _ in range(2):
        started = np.zeros((100, 2))
        found = np.array(spans(2, ping_pong, 100, links=links, script=[(change, [0.0] * 2, 4e-3, 8e-3, 0.0)]))
        begun = started.min(axis=1) * 1e-9
        medians = np.median(found[begun + before < change]), np.median(found[begun > change])
        if medians == pytest.approx((before, after), rel=0.05):
            return
    pytest.fail(f"{medians} s before and after the change, {before} and {after} expected")


@pytest.mark.timing
def test_a_large_message_keeps_its_rate():
    links = _core.Links("switch", alpha=ALPHA, beta=MBIT / 800)
    x = np.ones((2, 1 << 20), np.float32)
    expected = ALPHA + x[0].nbytes * links.beta
    holds(lambda: spans(2, lambda c, _: c.broadcast(x[c.rank], segments=1), links=links), expected)


@pytest.mark.timing
def test_overhead_is_the_slope_of_a_burst():
    """m segments of one message leave one after the other: each occupies the port."""
    links = _core.Links("switch", alpha=2e-3, beta=0.0)

    def burst(segments):
        return lambda: spans(
            2,
            lambda c, _: c.broadcast(
                np.ones(64 * segments, np.float32), algorithm="linear_pipeline", segments=segments
            ),
            links=links,
        )

    for segments in (5, 20):
        holds(burst(segments), segments * 2e-3)


@pytest.mark.timing
def test_latency_is_pipelined_and_pays_once_a_hop():
    links = _core.Links("switch", alpha=1e-3, beta=0.0, lambda_=10e-3)
    x = np.ones((2, 16 * 64), np.float32)

    def pipeline(comm, _):
        comm.broadcast(x[comm.rank], algorithm="linear_pipeline", segments=16)

    def ping_pong(comm, _):
        for root in (0, 1):
            comm.broadcast(x[comm.rank], root, algorithm="binomial_tree", segments=1)

    holds(lambda: spans(2, pipeline, links=links), 16 * 1e-3 + 10e-3)
    holds(lambda: spans(2, ping_pong, links=links), 2 * (1e-3 + 10e-3))


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["switch", "chain"])
def test_half_duplex_doubles_opposite_traffic(kind):
    links = _core.Links(kind, alpha=0.0, beta=MBIT / 400)
    x = np.ones((2, 1 << 18), np.float32)

    def both_ways(comm, _):
        comm.all_gather(x[comm.rank], algorithm="ring")

    once = x[0].nbytes * links.beta
    holds(lambda: spans(2, both_ways, links=links), once)
    holds(lambda: spans(2, both_ways, links=links, half_duplex=True), 2 * once)


def test_who_loses_a_race_for_its_ports_waits_for_them():
    """Both ranks want the one port of each again and again, at the same time."""
    links = _core.Links("switch", alpha=0.0, beta=MBIT / 1000)
    x = np.ones((2, 1 << 14), np.float32)

    def many_times(comm, _):
        for _ in range(100):
            comm.all_gather(x[comm.rank], algorithm="ring", segments=8)

    assert spans(2, many_times, 1, links=links, half_duplex=True)[0] > 100 * x.nbytes * links.beta


@pytest.mark.timing
def test_jitter_is_bounded_and_the_same_for_the_same_seed():
    links = _core.Links("switch", alpha=0.0, beta=0.0, lambda_=5e-3)
    x = np.ones((2, 16), np.float32)

    def times(seed):
        found = spans(
            2,
            lambda c, _: c.broadcast(x[c.rank], algorithm="binomial_tree", segments=1),
            8,
            links=links,
            jitter=40e-3,
            seed=seed,
        )
        return np.array(found)

    first, again, other = times(1), times(1), times(2)
    for found in (first, again, other):
        assert found.min() > 5e-3
        assert found.min() < 45e-3
    assert np.median(np.abs(first - again)) < 2e-3
    assert np.median(np.abs(first - other)) > 2e-3


def over_processes(comm, nbytes, by_progress_thread):
    """Seconds of each of three calls, from a common start, on this rank; and whether the sums were right."""
    import time

    import numpy as np

    times, right = [], True
    for _ in range(3):
        x = np.full(nbytes // 4, comm.rank, np.float32)
        comm.barrier()
        begin = time.monotonic()
        work = comm.all_reduce(x, algorithm="ring", segments=1, async_op=True)
        while by_progress_thread and not work.done():
            time.sleep(0.0005)
        work.wait()
        times.append(time.monotonic() - begin)
        right &= bool((x == sum(range(comm.world))).all())
    return times, right, comm.transport


@pytest.mark.timing
@pytest.mark.processes
@pytest.mark.parametrize("by_progress_thread", [False, True])
def test_over_processes(by_progress_thread):
    model = cost("all_reduce", "ring", world=3, nbytes=6 << 20, links=parse_model("chain:800Mbit,alpha=50us"))
    with gpucomm.local(3, links="chain:800Mbit,overhead=50us") as world:

        def measure():
            found = world.run(over_processes, 6 << 20, by_progress_thread)
            assert {(right, transport) for _, right, transport in found} == {(True, "emulated(shm)")}
            return np.max([times for times, _, _ in found], axis=0)

        holds(measure, model)


SCRIPT = """
import json, time
import numpy as np
import gpucomm
try:
    comm = gpucomm.init(timeout=20)
    x = np.ones(1 << 20, np.float32)
    print("started", comm.transport, flush=True)
    while True:
        comm.all_reduce(x, op="mean", algorithm="ring")
except gpucomm.errors.Error as error:
    print(json.dumps([type(error).__name__, str(error), time.monotonic()]), flush=True)
"""


def start(links: list[str]) -> list[subprocess.Popen]:
    return rank_processes.start(SCRIPT, [{"GPUCOMM_LINKS": text} for text in links])


@pytest.mark.processes
def test_a_killed_rank_is_noticed_within_a_second(ranks):
    ranks += start(["switch:10Mbit"] * 3)  # a call takes 4 s: the others wait for stamps
    for process in ranks:
        assert process.stdout.readline() == "started emulated(shm)\n"
    ranks[1].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    for rank in (0, 2):
        kind, text, noticed = json.loads(ranks[rank].communicate(timeout=20)[0])
        assert kind == "PeerLostError" and "rank 1 is gone" in text
        assert noticed - killed < PROMPT_S


@pytest.mark.processes
def test_ranks_with_other_links_in_their_environment_do_not_meet(ranks):
    ranks += start(["switch:1Gbit", "switch:2Gbit"])
    for process in ranks:
        kind, text, _ = json.loads(process.communicate(timeout=20)[0])
        assert kind == "MismatchError"
        assert "rank 1 (pid" in text and "give all ranks the same" in text


@pytest.mark.processes
def test_run_hands_the_links_on(tmp_path):
    (tmp_path / "job.py").write_text(
        "import gpucomm\ncomm = gpucomm.init()\ncomm.barrier()\n"
        "print(f'{comm.transport} {comm.links.kind} {comm.links.lambda_}\\n', end='', flush=True)\n"
    )

    def launch(links):
        command = [sys.executable, "-m", "gpucomm", "run", "-n", "2", "--links", links, "job.py"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    done = launch("chain:1Gbit,latency=0.5ms,overhead=50us,half,jitter=50us")
    assert done.stdout == "emulated(shm) chain 0.0005\n" * 2, done.stderr
    nodes = launch("nodes:1Gbit,of=1x2,node0=100Mbit,60s=10Mbit")
    assert nodes.stdout == "emulated(shm) nodes 0.0\n" * 2, nodes.stderr
    wrong = launch("chain:1Gbit,latency=1")
    assert wrong.returncode == 2 and "time '1' must be a number with a unit" in wrong.stderr
