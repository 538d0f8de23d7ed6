"""What the ranks of a test's job run: job_program.py FOLDER CHECK...; the results go to FOLDER/RANK.json.

A check returns a list of what was wrong, or a sentence about the error it met.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import device_ranks
import nccl_library
import nccl_message_ranks
import numpy as np
import staged_ranks
import test_abort
import test_untouched
from conftest import pairs
from jobs import leave
from reference import close
from test_collectives import expect, inputs, run

import gpucomm
from gpucomm import _core, errors

CHUNK = 256 << 10  # bytes of a message between nodes


def contract(comm):
    wrong = []
    for collective, algorithm in [*pairs(), ("all_reduce", "auto"), ("broadcast", "auto")]:
        for dtype, count in [("float32", n) for n in (0, 1, 7, 65537)] + [
            ("float16", 1000),
            ("int64", 40000),
        ]:
            arrays = inputs(collective, dtype, comm.world, count)
            root = count % comm.world
            result = run(comm, collective, arrays[comm.rank].copy(), root, algorithm=algorithm, segments=3)
            expected = expect(collective, arrays, comm.rank, root, "sum")
            if expected is not None and not close(result, expected, "sum"):
                wrong.append((collective, algorithm, dtype, count))
    return wrong


def chunk_borders(comm):
    wrong = []
    for size in (CHUNK - 1, CHUNK, CHUNK + 1, 4 * CHUNK, 9 * CHUNK + 64):
        for root in range(comm.world):
            x = np.full(size, root if comm.rank == root else 99, np.uint8)
            comm.broadcast(x, root, algorithm="direct", segments=1)
            wrong += [] if (x == root).all() else [(size, root)]
    return wrong


def same_bits(comm):
    """All algorithms: the same bits on every rank, and again; "auto" may take another one then."""
    wrong = []
    noise = np.random.default_rng(comm.rank).standard_normal(200_003).astype(np.float32)
    for algorithm in [name for collective, name in pairs("all_reduce")] + ["auto"]:
        digests = []
        for _ in range(2):
            bits = comm.all_reduce(noise.copy(), op="mean", algorithm=algorithm).tobytes()
            digests.append(set(comm.gather_objects(hashlib.blake2b(bits).hexdigest())))
        same = all(len(of_ranks) == 1 for of_ranks in digests) and (
            algorithm == "auto" or digests[0] == digests[1]
        )
        wrong += [] if same else [algorithm]
    return wrong


def point_to_point(comm):
    """Around a circle both ways at once, with messages larger than what can be under way."""
    wrong = []
    right, left = (comm.rank + 1) % comm.world, (comm.rank - 1) % comm.world
    for count in (0, 1, 32768, 1_000_000):
        x = np.full(count, comm.rank, np.float64)
        from_left, from_right = np.empty(count), np.empty(count)
        works = [comm.send(x, right, async_op=True), comm.recv(from_left, left, async_op=True)]
        comm.all_reduce(np.ones(10))
        works += [comm.recv(from_right, right, async_op=True), comm.send(x, left, async_op=True)]
        for work in works:
            work.wait()
        wrong += [] if (from_left == left).all() and (from_right == right).all() else [count]
    small = np.empty(5)
    comm.sendrecv(np.full(5, comm.rank, float), right, small, left)
    return wrong + ([] if (small == left).all() else ["sendrecv"])


def groups(comm):
    wrong = []
    half = comm.split(comm.rank % 2, key=-comm.rank, timeout=7)
    if half.timeout != comm.timeout:
        wrong.append("the timeout of a group")
    members = [r for r in reversed(range(comm.world)) if r % 2 == comm.rank % 2]
    if half.all_gather(np.array([comm.rank])).tolist() != members:
        wrong.append("split")
    some = comm.subset([2, 0])
    if bool(some) != (comm.rank in (0, 2)):
        wrong.append("who is in the subset")
    if some and some.all_gather(np.array([comm.rank])).tolist() != [2, 0]:
        wrong.append("subset")
    known = half.all_gather(np.array([half._identity], np.uint64))
    if len(set(known.tolist())) != 1 or half._identity in (0, comm._identity):
        wrong.append("the name of a group")
    if len(set(comm.all_gather(np.array([half._identity], np.uint64)).tolist())) != 2:
        wrong.append("the names of two groups")
    inside, across = comm.split_nodes()
    for group in (inside, across, half, *([some] if some else [])):
        if group.nodes != tuple(sorted(set(group.nodes)).index(n) for n in group.nodes):
            wrong.append(f"nodes {group.nodes}")
    own = [r for r in range(comm.world) if comm.nodes[r] == comm.nodes[comm.rank]]
    if inside.all_gather(np.array([comm.rank])).tolist() != own or len(set(inside.nodes)) != 1:
        wrong.append("inside the node")
    if len(set(across.nodes)) != across.world:
        wrong.append("across nodes")
    x = np.full(100_000, comm.rank + 1.0)
    inside.all_reduce(x)
    if across.world == len(set(comm.nodes)) and comm.world == across.world * inside.world:
        across.all_reduce(x)
        if x[-1] != comm.world * (comm.world + 1) / 2:
            wrong.append("inside and then across")
    for group in (inside, across, half, *([some] if some else [])):
        group.close()
    return wrong


def groups_at_once(comm):
    """Two threads, each of which makes groups of a communicator of its own."""
    wrong = []

    def use(parent, value):
        for _ in range(8):
            with parent.split(0) as group:
                x = group.all_reduce(np.full(4, value), algorithm="one_shot", segments=1)
                wrong.extend(x[x != comm.world * value].tolist())

    parents = [comm.split(0) for _ in range(2)]
    threads = [threading.Thread(target=use, args=pair) for pair in zip(parents, (1.0, 1000.0), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong + [str(parent) for parent in parents if parent.closed]


def lists_and_objects(comm):
    wrong = []
    arrays = [np.full((3, n), comm.rank + 1.0) for n in (1, 0, 50_000)] + [np.ones(9, np.int32)]
    total = comm.world * (comm.world + 1) / 2
    for array, value in zip(comm.all_reduce(arrays), (total, total, total, comm.world), strict=True):
        wrong += [] if (array == value).all() else ["a list"]
    thing = {"a": [1, 2.5, (None, "x")], 3: np.arange(4.0)}
    told = comm.broadcast_object(thing if comm.rank == 1 else None, root=1)
    wrong += [] if told["a"] == thing["a"] and (told[3] == thing[3]).all() else ["an object"]
    with comm.split(0) as group:
        later = group.gather_objects(comm.rank, async_op=True)
        wrong += [] if group.gather_objects(comm.rank) == list(range(comm.world)) else ["objects"]
        wrong += [] if later.wait() == list(range(comm.world)) else ["objects later"]
    return wrong


def shared_arrays(comm):
    """Arrays that ranks of one node read in place, and those of others are sent."""
    wrong = []
    for collective, algorithm in pairs("all_reduce", "broadcast", "all_gather", "reduce"):
        for count in (7, 100_003):
            x = gpucomm.empty(count, "float32", comm=comm)
            arrays = inputs(collective, "float32", comm.world, count)
            for _ in range(2):
                x[:] = arrays[comm.rank]
                result = run(comm, collective, x, comm.world - 1, algorithm=algorithm, segments=4)
                expected = expect(collective, arrays, comm.rank, comm.world - 1, "sum")
                if expected is not None and not close(result, expected, "sum"):
                    wrong.append((collective, algorithm, count))
    return wrong


def asynchronous(comm):
    arrays = [np.full(1 + 9000 * i, comm.rank, np.float32) for i in range(30)]
    works = [comm.all_reduce(x, op="max", async_op=True) for x in arrays]
    for work in reversed(works):
        work.wait()
    return [i for i, x in enumerate(arrays) if x[-1] != comm.world - 1]


def by_itself(comm):
    """Asynchronous calls that nobody waits for, nor asks about: only their arrays are looked at."""
    right, left = (comm.rank + 1) % comm.world, (comm.rank - 1) % comm.world
    names = [name for _, name in pairs("all_reduce")]
    sums, sent = [np.full(300_001, comm.rank + 1) for _ in names], np.full(300_001, comm.rank + 1)
    works = [comm.all_reduce(x, algorithm=name, async_op=True) for x, name in zip(sums, names, strict=True)]
    got = np.zeros_like(sent)
    works += [comm.send(sent, right, async_op=True), comm.recv(got, left, async_op=True)]
    total = comm.world * (comm.world + 1) // 2
    wrong = [] if within(20, lambda: all((x == total).all() for x in sums)) else ["all_reduce"]
    wrong += [] if within(20, lambda: (got == left + 1).all()) else ["recv"]
    ends = [Path(sys.argv[1], f"{rank}.ended") for rank in range(comm.world)]
    ends[comm.rank].touch()
    together = within(20, lambda: all(end.exists() for end in ends))  # else who is first helps the others on
    return wrong + ([] if together and within(20, lambda: all(w.done() for w in works)) else ["done"])


def within(seconds, true):
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


def aborts(comm):
    return test_abort.every_way(comm)


def untouched(comm):
    """Some of what ranks of one node are tested for, here by two of two nodes."""
    wrong = []
    with comm.subset([0, comm.world - 1]) as two:
        for collective, how in test_untouched.CASES[::10] if two else []:
            wrong += test_untouched.every_change(two, collective, how, 1000, last=1)
    comm.barrier()
    return wrong


def on_devices(comm):
    """Between nodes over NCCL; the tests' own library stands in."""
    nccl_library.own()
    wrong = []
    for collective, algorithm in [*pairs("all_reduce"), ("broadcast", "direct"), ("all_gather", "native")]:
        wrong += device_ranks.every_case(comm, collective, algorithm, 50)
    return wrong + ([] if device_ranks.uneven(comm) else ["uneven"])


def staged_on_devices(comm):
    """Between nodes through host memory, in all that each kind of plan needs."""
    wrong = []
    for collective, algorithm in [*pairs("all_reduce"), ("broadcast", "direct"), ("all_to_all", "direct")]:
        wrong += device_ranks.every_case(comm, collective, algorithm, 50)
    coded = {"algorithm": "coded_ring", "codec": "mpc", "segments": 2}
    same = device_ranks.as_on_the_host(comm, "all_reduce", "float32", 60_000, 50, **coded)
    way = staged_ranks.ways(comm)
    wrong += [] if way == "on a device through host memory" else [way]
    return wrong + ([] if same else ["coded"]) + ([] if device_ranks.uneven(comm) else ["uneven"])


def wrong_on_devices(comm):
    return device_ranks.met(lambda: device_ranks.wrong_count(comm))


def messages_on_devices(comm):
    """The same, of messages: around a ring, and across one another."""
    nccl_library.own()
    wrong = [n for n, right in enumerate(device_ranks.messages(comm, 50)) if not right]
    wrong += nccl_message_ranks.storm(comm, 1)
    wrong += [] if nccl_message_ranks.behind_a_large_one(comm) == (2, 1, 3)[comm.rank] else ["behind"]
    kind, text, _ = device_ranks.in_a_group(comm, nccl_message_ranks.unequal)
    return wrong + ([] if kind == "MismatchError" and "receives 4" in text else [text])


def refused_on_devices(comm):
    return device_ranks.met(lambda: device_ranks.one_call(comm))


def quiet(comm):
    """CPU seconds of a second in which nothing is to do, and of one in which a rank waits for another."""
    comm.barrier()
    begin = time.process_time()
    time.sleep(1)
    idle = time.process_time() - begin
    if comm.rank == 1:
        time.sleep(1)
    begin = time.process_time()
    comm.barrier()
    waiting = time.process_time() - begin
    return [f"{idle:.2f} s idle, {waiting:.2f} s waiting"] if idle > 0.1 or waiting > 0.5 else []


def late(comm):
    """A message longer than what may be under way, taken later than init's timeout."""
    x = np.full(1_000_000, comm.rank)
    if comm.rank:
        time.sleep(comm.timeout + 1)
        comm.recv(x, 0, timeout=30)
    else:
        comm.send(x, 1, timeout=30)
    return [] if (x == 0).all() else ["another message"]


def small_groups(comm):
    """Of groups that were closed no memory is left, but for what tells one from the next."""
    x, memory = np.ones(500_000, np.float32), []
    for _ in range(2):
        for _ in range(15):
            with comm.split(0) as group:
                group.all_reduce(x, algorithm="ring")
        comm.barrier()
        memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE"))
    return [] if memory[1] - memory[0] < 15 * 400_000 else memory


def many_refused(comm):
    """Of which the others are told while they do not listen: more than c10d has under way at once."""
    for _ in range(400):
        with contextlib.suppress(errors.InvalidArgumentError):
            comm.reduce(np.zeros(10), comm.world)
    for _ in range(1000):  # one is taken in each, where a wire is slow
        comm.barrier()
    return []


def senders_end(comm):
    """Nothing is left of groups that were closed but the thread that starts receives, where there is one."""
    for _ in range(3):
        comm.split(0).close()
    deadline = time.monotonic() + 10
    while threading.active_count() > 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    names = [thread.name for thread in threading.enumerate()]
    comm.barrier()  # and they come back
    return names if len(names) > 2 else []


def shows_itself(comm):
    nodes = len(set(comm.nodes))
    told = f"transport {os.environ['GPUCOMM_TRANSPORT']}, {nodes} nodes"
    return [] if told in repr(comm) else [repr(comm)]


def place(comm):
    return [comm.transport, list(comm.nodes), os.listdir("/dev/shm")]


def counted():
    """What the interface has sent and received inside TCP: 66 bytes of each packet are headers."""
    folder = Path("/sys/class/net/eth0/statistics")
    read = {name: int((folder / name).read_text()) for name in os.listdir(folder)}
    return np.array([read[f"{way}_bytes"] - 66 * read[f"{way}_packets"] for way in ("tx", "rx")])


def traffic(comm):
    """Bytes that this rank's host sends and receives in an all-reduce, over those of the plan."""
    elements, segments, found = 1 << 22, 16, {}
    own = [r for r in range(comm.world) if comm.nodes[r] == comm.nodes[comm.rank]]
    for algorithm in ("ring", "hierarchical", "linear_pipeline", "direct"):
        plans = _core.build_plans("all_reduce", algorithm, comm.world, segments=segments, nodes=comm.nodes)
        planned = np.zeros(2)
        for rank, plan in enumerate(plans):
            offsets = plan.layout(elements, align=16)
            for step in plan.steps:
                if step.kind == "send" and (rank in own) != (step.peers[0] in own):
                    planned[int(rank not in own)] += 4 * (
                        offsets[step.piece + step.pieces] - offsets[step.piece]
                    )
        x = np.ones(elements, np.float32)
        comm.barrier()
        before = counted()
        comm.barrier()  # nobody begins before all have looked
        comm.all_reduce(x, algorithm=algorithm, segments=segments)
        comm.barrier()
        found[algorithm] = ((counted() - before) / planned).round(6).tolist()
    return found


def cut_off(comm):
    """All-reduce without end, until the last rank takes its host off the net."""
    x = np.ones(100_000, np.float32)

    def forever():
        for _ in range(20):
            comm.all_reduce(x, algorithm="ring", timeout=3)
        if comm.rank == comm.world - 1:
            subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
        while True:
            comm.all_reduce(x, algorithm="ring", timeout=3)

    return met(forever)


def met(call):
    """The error that a call meets and after how many seconds."""
    begin = time.monotonic()
    try:
        call()
    except errors.Error as error:
        return [type(error).__name__, str(error), time.monotonic() - begin]
    return ["nothing", "", time.monotonic() - begin]


def faults(comm):
    """One after another, each in a communicator of its own; the parent stays whole."""
    found = {}

    def each(name, fault):
        with comm.subset(range(comm.world)) as group:
            found[name] = met(lambda: fault(group))
            comm.barrier()
            if name == "missing" and comm.rank == 1:
                found[name] = met(group.barrier)

    first = comm.rank == 0
    each("count", lambda g: g.all_reduce(np.zeros(200 if first else 100), timeout=10))
    each(
        "algorithm",
        lambda g: g.all_reduce(np.zeros(10**5), algorithm="ring" if first else "direct", timeout=10),
    )
    each("pair", lambda g: (unequal(g), g.barrier()))
    each("two roots", two_roots)
    each("missing", lambda g: None if comm.rank == 1 else g.all_reduce(np.zeros(1000), timeout=1))
    each("refused", refused)
    each("refused message", refused_message)
    each("shrunk", shrunk)
    each("closed", lambda g: g.close() if comm.rank == 1 else g.all_reduce(np.zeros(10**6), timeout=10))
    each("aborted", lambda g: g.abort() if comm.rank == 1 else g.barrier(timeout=10))
    comm.barrier()
    return found


def unequal(comm):
    if comm.rank == 0:
        comm.send(np.zeros(3), 1)
    elif comm.rank == 1:
        comm.recv(np.zeros(4), 0)


def two_roots(comm):
    """Of short messages: neither root needs the other before its fourth. The later one knows sooner."""
    later = comm.rank == comm.world - 1
    time.sleep(0.4 * later)
    for _ in range(3 if later else 12):
        comm.broadcast(np.ones(2), comm.rank if later else 0, algorithm="direct", timeout=10)
        time.sleep(0.2)


def refused(comm):
    if comm.rank == 1:
        with contextlib.suppress(errors.InvalidArgumentError):
            comm.reduce(np.zeros(10), comm.world)
        time.sleep(1)
    comm.reduce(np.zeros(10), 0, algorithm="direct", timeout=10)
    comm.barrier(timeout=10)


def refused_message(comm):
    if comm.rank == 1:
        with contextlib.suppress(errors.UnsupportedTypeError):
            comm.send(np.zeros(20)[::2], 0)
        time.sleep(1)
    elif comm.rank == 0:
        comm.recv(np.zeros(10), 1, timeout=10)
    comm.barrier(timeout=10)


def shrunk(comm):
    comm.abort()
    comm.shrink(timeout=5)


def exit_of_one(comm):
    if comm.rank == 1:
        sys.exit(0)
    return met(lambda: comm.all_reduce(np.zeros(10**6), timeout=10))


def end_of_one_in_a_group(comm):
    """The group is dropped, not closed, when its lines have failed already."""
    group = comm.split(0)
    if comm.rank == 1:
        os._exit(0)
    found = met(lambda: group.all_reduce(np.zeros(10**6), timeout=10))
    time.sleep(0.5)
    return found


def heard_by_nobody(comm):
    """More was said than c10d has under way, and the ranks after this one are gone, when this one ends."""
    for _ in range(400):
        with contextlib.suppress(errors.InvalidArgumentError):
            comm.reduce(np.zeros(10), comm.world)
    comm.barrier()
    time.sleep(1.5 + comm.rank % 2)  # all must be out of the barrier before the first is gone
    if comm.rank % 2 == 0:
        os._exit(0)
    return []


def left_by_one(comm):
    """A rank that closed well and ended is missed by nobody who asks nothing of it."""
    if comm.rank == 2:
        comm.close()
        return []
    time.sleep(3)
    wrong = ["closed"] if comm.closed else []
    x = np.full(10, comm.rank)
    for _ in range(2 * (comm.rank < 2)):
        comm.recv(x, 0) if comm.rank else comm.send(x, 1)
        time.sleep(0.3)
    return wrong if comm.rank != 1 or (x == 0).all() else ["another message"]


def hang_of_one(comm):
    """The others end by what they are told, though MPI waits for all."""
    if comm.rank == 1:
        time.sleep(1000)
    comm.all_reduce(np.zeros(10), timeout=1)


def kill_of_one(comm):
    """While the others wait for it."""
    if comm.rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return met(lambda: comm.all_reduce(np.zeros(10**6), timeout=10))


def refused_and_made(comm):
    """A refusal that was made good is forgotten, though other nodes hear nothing of this rank later."""
    if comm.rank == 1:
        with contextlib.suppress(errors.InvalidArgumentError):
            comm.all_reduce(np.ones(9), algorithm="rign")
    for late in (0, 0, 0.7):
        time.sleep(late * (comm.rank == 1))
        comm.all_reduce(np.ones(9), algorithm="ring", segments=1)
    return []


def second_init(comm):
    comm.close()
    with gpucomm.init(timeout=20) as again:
        return [] if again.all_reduce(np.ones(3))[0] == again.world else ["a second init"]


def main(folder, *checks):
    report = {}
    comm = gpucomm.init(timeout=float(os.environ.get("JOB_TIMEOUT", "30")))
    rank = comm.rank
    for check in checks:
        begin = time.monotonic()
        report[check] = globals()[check](comm)
        report[check + " seconds"] = round(time.monotonic() - begin, 2)
        leave(Path(folder, f"{rank}.json"), report)


if __name__ == "__main__":
    main(*sys.argv[1:])
