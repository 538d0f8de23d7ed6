"""Cross-memory attach: long private messages are read where they lie, or staged where that is refused."""

from __future__ import annotations

import os
import platform
import textwrap
import warnings
from pathlib import Path

import pytest
from conftest import pairs
from ranks import PROMPT_S
from test_heap_faults import run

import gpucomm
from gpucomm import _core

pytestmark = pytest.mark.processes
HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def have_huge_pages() -> bool:
    return HUGE.exists() and "[never]" not in HUGE.read_text()


def on_huge_pages(count):
    """An array of float32 for which huge pages were asked, before its first touch."""
    from gpucomm.bench.peers import aligned_zeros

    return aligned_zeros(count, "float32", huge_pages=True)


@pytest.fixture(
    scope="module",
    params=[(None, "1", ""), (None, "2", ""), (None, "1", "0"), ("switch:8Gbit", "1", "")],
    ids=["shm", "small pages too", "past the caches", "emulated"],
)
def world(request):
    pytest.importorskip("cloudpickle")
    links, attach, cache = request.param
    path = {"PYTHONPATH": str(Path(__file__).parent), "GPUCOMM_CMA": attach, "GPUCOMM_LLC_MIB": cache}
    with warnings.catch_warnings():  # such links are too fast for small machines
        warnings.simplefilter("ignore", RuntimeWarning)
        world = gpucomm.local(3, env=path, links=links, timeout=20.0)
    with world:
        yield world


def contract(comm, collective, algorithm):
    """Whether long arrays come out right, and how many messages this rank sent."""
    import numpy as np
    from test_collectives import expect, inputs, run
    from test_cross_memory import on_huge_pages

    arrays = inputs(collective, "float32", comm.world, 600_000)
    x = on_huge_pages(arrays[comm.rank].size)
    wrong = []
    for segments in (1, 3):
        x[:] = arrays[comm.rank]
        result = run(comm, collective, x, 1, algorithm=algorithm, segments=segments)
        expected = expect(collective, arrays, comm.rank, 1, "sum")
        if expected is not None and not np.array_equal(result, expected):
            wrong.append(segments)
    return wrong


@pytest.mark.parametrize(("collective", "algorithm"), pairs())
def test_results(world, collective, algorithm):
    assert world.run(contract, collective, algorithm) == [[]] * 3


SENT = """
    import numpy as np, sys
    sys.path.insert(0, {tests!r})
    from test_cross_memory import on_huge_pages
    import gpucomm
    comm = gpucomm.init()
    x = {array}
    x[:] = comm.rank
    comm.barrier()
    before = comm.stats()["messages_sent"]
    comm.broadcast(x, 0, algorithm="direct", segments={segments})
    assert (x == 0).all()
    print(comm.stats()["messages_sent"] - before, comm.readers) if comm.rank == 0 else None
"""


@pytest.mark.skipif(not have_huge_pages(), reason="this kernel gives no huge pages")
def test_it_is_used_and_can_be_refused():
    script = SENT.format(tests=str(Path(__file__).parent), array="on_huge_pages(1 << 20)", segments=1)
    sent, readers = run(script).split(" ", 1)
    if readers != "{1: ''}\n":
        pytest.skip(f"processes may not read each other here: {readers}")
    assert sent == "1"
    sent, readers = run(script, GPUCOMM_CMA="0").split(" ", 1)
    assert int(sent) > 1 and "switched off here by GPUCOMM_CMA=0" in readers


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ranks that outnumber cores read all the same")
def test_far_beyond_the_caches_messages_are_staged():
    script = SENT.format(tests=str(Path(__file__).parent), array="on_huge_pages(1 << 20)", segments=1)
    sent, readers = run(script, GPUCOMM_LLC_MIB="0").split(" ", 1)
    if readers != "{1: ''}\n":
        pytest.skip(f"processes may not read each other here: {readers}")
    assert int(sent) > 1


@pytest.mark.timing
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a rank helps where both have a core")
@pytest.mark.parametrize("bound", [False, True], ids=["anywhere", "bound to a core each"])
def test_the_sender_does_a_part_of_the_work(bound):
    """Who only waits sleeps: what time its process takes is that of copying."""
    script = """
        import os, time
        import numpy as np
        rank = int(os.environ["GPUCOMM_RANK"])
        if os.environ["BOUND"] == "True":
            os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
        import gpucomm
        from gpucomm.probe import measure
        comm = gpucomm.init()
        assert measure(comm, fresh=True).together == ()
        x = np.full(1 << 24, comm.rank, np.float32)
        comm.broadcast(x, 0, algorithm="direct", segments=1)
        comm.barrier()
        if comm.readers and any(comm.readers.values()):
            print("refused", comm.readers)
            raise SystemExit
        begin = time.process_time()
        for _ in range(20):
            comm.broadcast(x, 0, algorithm="direct", segments=1)
        mine = np.array([time.process_time() - begin])
        both = comm.all_gather(mine)
        assert (x == 0).all()
        print(both[0] / both[1]) if comm.rank == 0 else None
    """
    said = run(script, GPUCOMM_CMA="2", GPUCOMM_SPIN_US="0", BOUND=str(bound))
    if said.startswith("refused"):
        pytest.skip(f"processes may not read each other here: {said}")
    assert float(said) > 0.2


@pytest.mark.parametrize("count", [1 << 12, 1 << 14, (1 << 15) + 1, 100_003, 1 << 20, (1 << 22) + 5])
def test_messages_in_pieces(world, count):
    """Point to point too, from where longer ones wait for their receiver."""

    def body(comm, count):
        import numpy as np

        wrong = []
        for number in range(5):
            x = np.arange(count, dtype=np.float32) + number if comm.rank == 1 else np.zeros(count, np.float32)
            expected = np.arange(count, dtype=np.float32) + number
            comm.broadcast(x, 1, algorithm="direct", segments=1)
            wrong += [] if np.array_equal(x, expected) else ["broadcast"]
            to, source = (comm.rank + 1) % comm.world, (comm.rank - 1) % comm.world
            got = comm.sendrecv(x + comm.rank, to, np.empty_like(x), source)
            wrong += [] if np.array_equal(got, expected + source) else ["sendrecv"]
        return wrong

    assert world.run(body, count) == [[]] * 3


def test_small_pages_are_read_where_that_is_told_or_quick():
    script = SENT.format(tests=str(Path(__file__).parent), array="np.empty(1 << 18, np.float32)", segments=1)
    sent, readers = run(script, GPUCOMM_CMA="2").split(" ", 1)
    if readers != "{1: ''}\n":
        pytest.skip(f"processes may not read each other here: {readers}")
    assert sent == "1"
    read, copy, quick = _core.small_page_speed()
    assert min(read, copy) > 0 and quick == (3 * read >= copy)


@pytest.mark.skipif(not have_huge_pages(), reason="this kernel gives no huge pages")
def test_auto_tries_both_ways_of_private_arrays():
    """By logs in which the one or the other is the quicker."""
    script = """
        import sys
        sys.path.insert(0, {tests!r})
        from test_cross_memory import on_huge_pages
        import gpucomm
        from gpucomm.bench.learning import learn
        comm = gpucomm.init()
        x = on_huge_pages(1 << 20)

        def learnt():
            x[:] = comm.rank
            learn(comm, "broadcast", x.nbytes, lambda: comm.broadcast(x, 0))
            before = comm.stats()["messages_sent"]
            comm.broadcast(x, 0)
            assert (x == 0).all()
            (row,) = comm.tuning()
            return row, comm.stats()["messages_sent"] - before

        row, _ = learnt()
        assert row["both_ways"] and row["private_arrays"] in ("staged", "attached")
        first, rivals = row["candidates"][0], [len(agreed) for agreed in row["agreements"]]
        last = len(row["candidates"])
        parted = next(i for i, n in enumerate(rivals) if n > ((rivals[i - 1] + 1) // 2 if i else last))
        sent = []
        for way in ("attached", "staged"):
            times = [[1.0] * len(agreed) for agreed in row["agreements"]]
            k = rivals[parted] // 2
            times[parted] = [1.0 + ((i < k) == (way == "attached")) for i in range(2 * k)]
            row["agreements"] = times
            comm.replay([row])
            taken, messages = learnt()
            assert taken["agreements"][: len(times)] == times and taken["private_arrays"] == way
            assert (taken["algorithm"], taken["segments"]) == (first["algorithm"], first["segments"])
            sent.append(messages)
        print(sent, comm.readers) if comm.rank == 0 else None
    """
    said = run(script.format(tests=str(Path(__file__).parent)))
    sent, readers = said.split("] ")
    if readers != "{1: ''}\n":
        pytest.skip(f"processes may not read each other here: {readers}")
    lent, staged = map(int, sent[1:].split(", "))
    assert lent < staged


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take the permission from a rank")
def test_the_kernels_refusal_leaves_all_staged():
    """Rank 1 gives up its rights, and rank 0 its dumpability: rank 1 may not read rank 0."""
    script = """
        import ctypes, os, sys
        if os.environ["GPUCOMM_RANK"] == "0":
            ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        else:
            for capability in range(64):
                ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
            header = (ctypes.c_uint32 * 2)(0x20080522, 0)
            ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)())
    """
    body = SENT.format(tests=str(Path(__file__).parent), array="on_huge_pages(1 << 20)", segments=1)
    sent, readers = run(textwrap.dedent(script) + textwrap.dedent(body)).split(" ", 1)
    assert int(sent) > 1
    assert readers == "{1: 'the kernel refused it'}\n"


FOLDED = """
    import numpy as np
    import gpucomm
    comm = gpucomm.init()
    total = sum(range(1, comm.world + 1))
    for count in (1 << 13, 1 << 15, 100_003, (1 << 20) + 5, {longest}):
        x = np.empty(count, np.float32)
        out = np.empty(count + 2, np.float32)
        for number in range(3):
            x[:], out[:] = comm.rank + 1, -1
            comm.all_reduce(x, out=out[1:-1], algorithm={algorithm!r}, segments=1)
            assert (x == comm.rank + 1).all() and (out[1:-1] == total).all() and out[0] == out[-1] == -1
            part = x[count // 3 : count - 7]
            comm.all_reduce(part, algorithm={algorithm!r}, segments=1)
            assert (part == total).all() and (x == comm.rank + 1).sum() == count - part.size
            half = np.full(comm.world * (count // 2), comm.rank + 1, np.float32)
            assert (comm.reduce_scatter(half, algorithm={algorithm!r}, segments=1) == total).all()
            at_root = comm.reduce(half, 1, segments=1)
            assert comm.rank != 1 or (at_root == total).all()
    x[:] = 1
    before = comm.stats()["messages_sent"]
    comm.all_reduce(x, algorithm={algorithm!r}, segments=1)
    print(comm.stats()["messages_sent"] - before, comm.readers) if comm.rank == 0 else None
"""


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("algorithm", ["direct", "ring"])
def test_sums_of_private_arrays(world, algorithm):
    """In place and not, also of parts of arrays, up to messages that take more than one entry."""
    longest = 20 << 20 if algorithm == "direct" and world == 2 else 3 << 20
    run(FOLDED.format(algorithm=algorithm, longest=longest), world, GPUCOMM_CMA="2")


def test_private_sums_take_few_messages():
    """Each half is lent by two entries, and its answer is there when it is told."""
    script = FOLDED.format(algorithm="direct", longest=10 << 20)
    sent, readers = run(script, GPUCOMM_CMA="2").split(" ", 1)
    if readers != "{1: ''}\n":
        pytest.skip(f"processes may not read each other here: {readers}")
    assert int(sent) == 3
    assert int(run(script, GPUCOMM_CMA="0").split(" ", 1)[0]) > 100


# A filter of system calls (seccomp); numbers are those of x86-64.
FORBID = """
import ctypes, struct
READV, WRITEV = 310, 311  # process_vm_...
def forbid(number):
    BPF = 2
    lines = (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)
    code = b"".join(struct.pack("HBBI", *line) for line in lines)
    held = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, BPF, ctypes.create_string_buffer(program), 0, 0) == 0, ctypes.get_errno()
"""
knows_the_numbers = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the filter knows this machine's numbers of calls"
)


@knows_the_numbers
@pytest.mark.parametrize("call", ['broadcast(x, 0, algorithm="direct")', 'all_reduce(x, algorithm="direct")'])
def test_a_rank_that_may_no_longer_read_another_says_so_at_once(call):
    script = f"""
import gpucomm, numpy as np, time
comm = gpucomm.init(timeout=30)
x = np.ones(1 << 20, np.float32)
comm.{call}
reads = comm.readers == {{1 - comm.rank: ""}}
forbid(READV if comm.rank else WRITEV)  # else rank 0 might write all of it before the other looks
comm.barrier()
begin, said = time.monotonic(), ""
try:
    comm.{call}
except gpucomm.errors.UnavailableError as error:
    said = str(error)
if not comm.rank:
    print(reads, time.monotonic() - begin < {PROMPT_S}, said)
"""
    said = run(FORBID + script, GPUCOMM_CMA="2")
    if said.startswith("False"):
        pytest.skip("processes may not read each other here")
    assert said.startswith(
        "True True rank 1 reports: rank 1 of 2 can no longer read the memory of rank 0 (Op"
    )


@knows_the_numbers
def test_where_the_kernel_refuses_writes_only_results_are_sent():
    """Ranks may read each other, but not write."""
    body = FOLDED.format(algorithm="direct", longest=3 << 20)
    sent, readers = run(FORBID + "forbid(WRITEV)\n" + textwrap.dedent(body), GPUCOMM_CMA="2").split(" ", 1)
    if readers != "{1: ''}\n":
        pytest.skip(f"processes may not read each other here: {readers}")
    assert int(sent) > 2


@knows_the_numbers
def test_what_the_sender_may_not_write_the_receiver_reads():
    script = """
import gpucomm, numpy as np
forbid(WRITEV)
comm = gpucomm.init(timeout=20)
x, wrong = np.empty(1 << 18, np.float32), 0
for number in range(40):
    x[:] = number * comm.rank
    comm.broadcast(x, 1, algorithm="direct", segments=1)
    wrong += int((x != number).any())
wrong = int(comm.all_gather(np.array([wrong])).sum())
print(wrong) if comm.rank == 0 else None
"""
    assert run(FORBID + script, GPUCOMM_CMA="2") == "0\n"


def test_secret_memory_is_staged():
    """Memory that the kernel lets nobody copy, as that of some devices."""
    script = """
        import ctypes, mmap, os
        import numpy as np
        import gpucomm
        comm = gpucomm.init(timeout=20)
        fd = ctypes.CDLL(None).syscall(447, 0)  # memfd_secret
        able = comm.all_reduce(np.array([fd >= 0]), op="min")[0]
        if able:
            os.ftruncate(fd, 1 << 22)
            try:
                x = np.frombuffer(mmap.mmap(fd, 1 << 22), np.float32)
            except OSError:
                able = False
        if comm.all_reduce(np.array([able]), op="min")[0]:
            x[:] = comm.rank + 1
            comm.all_reduce(x, algorithm="direct")
            assert (x == 3).all()
            comm.broadcast(x, 1, algorithm="direct")
            assert (x == 3).all()
            print("done") if comm.rank == 0 else None
        else:
            print("unable") if comm.rank == 0 else None
    """
    said = run(script, GPUCOMM_CMA="2")
    if said == "unable\n":
        pytest.skip("this kernel has no secret memory, or lets none be locked")
    assert said == "done\n"
