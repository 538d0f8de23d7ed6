"""Ranks that find each other, or all learn why they do not: late, double, foreign, dying, stopped ones."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rank_processes

from gpucomm import _core, errors
from gpucomm.launch import wire
from gpucomm.launch.ranks import Ranks
from gpucomm.launch.rendezvous import meet

LONG = 30.0  # seconds: a test that reaches it has failed
QUICK = 5.0  # seconds in which a fault must be told, far below LONG


def hello(rank: int, world: int) -> wire.Message:
    return wire.hello(rank, world, LONG, Ranks(rank, world, "", "test").settings)


@pytest.fixture
def job() -> str:
    return uuid.uuid4().hex


class Attached:
    """What a rank makes of the memory: remembers which memory it was, and whether it was closed."""

    def __init__(self, memory: int) -> None:
        self.inode = os.fstat(memory).st_ino
        self.closed = False

    def close(self) -> None:
        self.closed = True


def create(world: int) -> int:
    return os.memfd_create("test")


class Rank(threading.Thread):
    """One rank in a thread; `outcome` is what meet returned or raised, `took` how long it needed."""

    def __init__(self, job: str, rank: int, world: int, timeout: float = LONG, **changes: Any) -> None:
        super().__init__(daemon=True)
        self.ranks = Ranks(rank, world, job, "test")
        self.timeout = timeout
        self.create: Callable[[int], int] = changes.get("create", create)
        self.attach: Callable[[int], Any] = changes.get("attach", Attached)
        self.outcome: Any = None
        self.start()

    def run(self) -> None:
        began = time.monotonic()
        try:
            self.outcome = meet(self.ranks, 0, self.timeout, self.create, self.attach)
        except BaseException as error:
            self.outcome = error
        self.took = time.monotonic() - began


def end(*ranks: Rank) -> list[Any]:
    for rank in ranks:
        rank.join(LONG)
        assert not rank.is_alive()
    return [rank.outcome for rank in ranks]


def check_all_raise(ranks: list[Rank], kind: type[Exception], *words: str) -> None:
    for outcome in end(*ranks):
        assert type(outcome) is kind, outcome
        assert all(word in str(outcome) for word in words), outcome
    assert max(rank.took for rank in ranks) < QUICK


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("world", [2, 5])
def test_all_get_the_same_memory_and_no_descriptor_stays(job: str, world: int) -> None:
    before = open_descriptors()
    outcomes = end(*[Rank(job, rank, world) for rank in reversed(range(world))])
    assert {type(outcome) for outcome in outcomes} == {Attached}, outcomes
    assert len({outcome.inode for outcome in outcomes}) == 1
    assert not any(outcome.closed for outcome in outcomes)
    assert open_descriptors() == before


def test_missing_ranks_are_named_to_all(job: str) -> None:
    ranks = [Rank(job, rank, 4, timeout=0.5) for rank in (0, 2)]
    check_all_raise(
        ranks, errors.CollectiveTimeoutError, "0.5 s", "ranks [0, 2] came", "ranks [1, 3] did not"
    )


def test_missing_rank_0_is_named(job: str) -> None:
    check_all_raise(
        [Rank(job, 1, 2, timeout=0.2)], errors.CollectiveTimeoutError, "rank 1 of 2", "rank 0", job
    )


def test_the_shortest_timeout_counts_for_all(job: str) -> None:
    ranks = [Rank(job, 0, 3, timeout=LONG), Rank(job, 1, 3, timeout=0.3)]
    check_all_raise(ranks, errors.CollectiveTimeoutError, "ranks [0, 1] came", "ranks [2] did not")


def test_a_job_that_did_not_start_can_be_started_again(job: str) -> None:
    check_all_raise([Rank(job, 0, 2, timeout=0.2)], errors.CollectiveTimeoutError, "ranks [1] did not")
    outcomes = end(Rank(job, 0, 2), Rank(job, 1, 2))
    assert {type(outcome) for outcome in outcomes} == {Attached}, outcomes


@pytest.mark.parametrize("double", [0, 1])
def test_two_processes_with_one_rank(job: str, double: int) -> None:
    ranks = [Rank(job, rank, 3) for rank in (0, double, double)[: 2 + double]]
    check_all_raise(
        ranks, errors.MismatchError, f"two processes say that they are rank {double}", str(os.getpid())
    )


def test_a_rank_of_another_pid_namespace(job: str, visitor: Visitor) -> None:
    host = Rank(job, 0, 2)
    elsewhere = {**hello(1, 2), "pid": 1}
    visitor().sendall(wire.frame(elsewhere))
    check_all_raise([host], errors.MismatchError, "rank 1 is in another PID namespace (its pid is 1, seen")


def test_different_world_sizes(job: str) -> None:
    ranks = [Rank(job, 0, 3), Rank(job, 1, 4)]
    check_all_raise(ranks, errors.MismatchError, "rank 1", "expects 4 ranks", "rank 0 expects 3")


def test_who_comes_after_the_fault_hears_of_it_too(job: str) -> None:
    early = [Rank(job, 0, 4), Rank(job, 1, 5)]
    early[1].join(QUICK)
    time.sleep(0.3)
    ranks = [*early, Rank(job, 2, 4), Rank(job, 3, 4)]
    check_all_raise(ranks, errors.MismatchError, "rank 1", "expects 5 ranks, rank 0 expects 4")


def test_rank_0_that_cannot_make_the_memory(job: str) -> None:
    def fail(world: int) -> int:
        raise OSError("no memory left")

    host, guest = Rank(job, 0, 2, create=fail), Rank(job, 1, 2)
    check_all_raise([guest], errors.UnavailableError, "rank 0 could not start", "no memory left")
    check_all_raise([host], OSError, "no memory left")


@pytest.mark.parametrize("broken", [0, 1])
@pytest.mark.parametrize("kind", [OSError, errors.UnavailableError])
def test_a_rank_that_cannot_attach(job: str, broken: int, kind: type[Exception]) -> None:
    attached: list[Attached] = []

    def succeed(memory: int) -> Attached:
        attached.append(Attached(memory))
        return attached[-1]

    def fail(memory: int) -> Attached:
        raise kind("cannot map")

    before = open_descriptors()
    ranks = [Rank(job, rank, 3, attach=fail if rank == broken else succeed) for rank in range(3)]
    check_all_raise([ranks[broken]], kind, "cannot map")
    others = [rank for rank in ranks if rank is not ranks[broken]]
    check_all_raise(others, errors.UnavailableError, f"rank {broken} could not", "cannot map")
    assert all(one.closed for one in attached)
    assert open_descriptors() == before


@pytest.fixture
def visitor(job: str) -> Iterator[Callable[[], socket.socket]]:
    """Connect to the meeting as something that is no rank."""
    opened: list[socket.socket] = []

    def visit() -> socket.socket:
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            connection = socket.socket(socket.AF_UNIX)
            opened.append(connection)
            connection.settimeout(LONG)
            try:
                connection.connect(wire.address(job, 0))
            except ConnectionRefusedError:
                threading.Event().wait(0.001)
            else:
                return connection
        raise TimeoutError

    yield visit
    for connection in opened:
        connection.close()


Visitor = Callable[[], socket.socket]


@pytest.mark.parametrize(
    "change", [{"version": "999"}, {"protocol": wire.PROTOCOL + 1, "rank": "in another form"}]
)
def test_different_versions(job: str, visitor: Visitor, change: dict[str, Any]) -> None:
    host = Rank(job, 0, 3)
    good, bad = visitor(), visitor()
    good.sendall(wire.frame(hello(2, 3)))
    other = {**hello(1, 3), **change}
    bad.sendall(wire.frame(other))
    theirs, ours = (
        f"gpucomm {other['version']} (protocol {other['protocol']})",
        f"rank 0 runs {_core.version}",
    )
    check_all_raise([host], errors.MismatchError, theirs, ours)
    for told in (good, bad):
        check_reply(told, "MismatchError", theirs, ours)


def check_reply(guest: socket.socket, kind: str, *words: str) -> None:
    reply = json.loads(guest.recv(4096)[4:])
    assert reply["kind"] == kind
    assert all(word in reply["text"] for word in words), reply


def test_a_rank_that_ends_while_others_are_awaited(job: str, visitor: Visitor) -> None:
    host = Rank(job, 0, 4)
    staying, leaving = visitor(), visitor()
    staying.sendall(wire.frame(hello(2, 4)))
    leaving.sendall(wire.frame(hello(1, 4)))
    leaving.close()
    check_all_raise([host], errors.PeerLostError, "rank 1 (pid", "of 4 ended")
    check_reply(staying, "PeerLostError", "rank 1 (pid", "of 4 ended")


def test_the_reason_reaches_a_rank_that_was_not_heard_yet(job: str, visitor: Visitor) -> None:
    """One has said nothing, another connects while rank 0 does not look."""
    late: list[socket.socket] = []

    def fail(world: int) -> int:
        late.append(visitor())
        raise OSError("no memory left")

    host = Rank(job, 0, 2, create=fail)
    silent = visitor()
    check_all_raise([Rank(job, 1, 2)], errors.UnavailableError, "no memory left")
    check_all_raise([host], OSError, "no memory left")
    for told in (silent, *late):
        check_reply(told, "UnavailableError", "no memory left")


GARBAGE = {
    "nothing": b"",
    "half a length": b"\0\0",
    "a huge length": struct.pack("!I", 2**32 - 1) + b"x",
    "no length": struct.pack("!I", 0),
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "not utf-8": struct.pack("!I", 4) + b"\xff\xfe\xfd\xfc",
    "no object": struct.pack("!I", 4) + b"[42]",
    "deep": struct.pack("!I", 60_000) + b"[" * 60_000,
    "another program": struct.pack("!I", 11) + b'{"hello":1}',
    "an unknown message": wire.frame({"gpucomm": "bye"}),
    "no number as rank": wire.frame({**hello(1, 2), "rank": True}),
    "no patience": wire.frame({**hello(1, 2), "patience": None}),
    "patience for ever": wire.frame({**hello(1, 2), "patience": 1e10}),
    "no settings": wire.frame({**hello(1, 2), "settings": [1, 2, 3]}),
}


@pytest.mark.parametrize("hang_up", [False, True])
def test_strangers_disturb_nobody(job: str, visitor: Visitor, hang_up: bool) -> None:
    host = Rank(job, 0, 2)
    for data in GARBAGE.values():
        stranger = visitor()
        stranger.sendall(data)
        if hang_up:
            stranger.close()
    outcomes = end(host, Rank(job, 1, 2))
    assert {type(outcome) for outcome in outcomes} == {Attached}, outcomes
    assert host.took < QUICK


@pytest.mark.parametrize("length", [0, 1, wire.LIMIT + 1, 2**32 - 1])
def test_a_length_that_no_message_has_is_refused_at_once(length: int) -> None:
    inbox = wire.Inbox()
    inbox.feed(struct.pack("!I", length))
    with pytest.raises(ValueError, match=f"a message of {length} bytes"):
        inbox.take()


@pytest.mark.parametrize("letter", ["x", "\N{SNOWMAN}", "\N{BEACH WITH UMBRELLA}", "\N{DUCK}"])
def test_a_text_that_is_too_long_for_a_message_is_cut(letter: str) -> None:
    inbox, text = wire.Inbox(), letter * (2 * wire.LIMIT)
    inbox.feed(wire.frame({"gpucomm": "error", "text": text}))
    message = inbox.take()
    assert message and message["text"] and text.startswith(message["text"])


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_the_world_has_not_is_told_so(rank: int) -> None:
    first = hello(rank, 2)
    assert "must have a rank below 2" in (wire.unfit(first, 2, first["settings"]) or "")


def test_a_foreign_user_is_turned_away(job: str, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's answer about the other end is replaced: another uid for the first that comes."""
    host = Rank(job, 0, 2)
    monkeypatch.setattr(wire, "peer", lambda connection: (1, os.geteuid() + 1))
    foreign = visitor()
    assert foreign.recv(1) == b"", "closed without a word"
    monkeypatch.undo()
    outcomes = end(host, Rank(job, 1, 2))
    assert {type(outcome) for outcome in outcomes} == {Attached}, outcomes


def test_a_foreign_host_is_not_trusted(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "peer", lambda connection: (123, os.geteuid() + 1))
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(wire.address(job, 0))
        squatter.listen()
        ranks = [Rank(job, 1, 2), Rank(job, 0, 2)]
        check_all_raise(ranks, errors.UnavailableError, "held by process 123", f"user {os.geteuid() + 1}")


def process(job: str, rank: int, world: int, timeout: float, attach: str) -> subprocess.Popen[str]:
    """A rank as a process; `attach` is code that runs when it has the memory."""
    code = f"""
        import os, signal, time
        from gpucomm import errors
        from gpucomm.launch.ranks import Ranks
        from gpucomm.launch.rendezvous import meet

        class Attached:
            def __init__(self, memory):
                {attach}
            def close(self): pass

        create = lambda world: os.memfd_create("test")
        began = time.monotonic()
        try:
            meet(Ranks({rank}, {world}, {job!r}, "test"), 0, {timeout}, create, Attached)
        except errors.Error as error:
            print(type(error).__name__, round(time.monotonic() - began, 1), error)
    """
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)


@pytest.mark.processes
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_while_it_attaches(job: str, victim: int) -> None:
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    ranks = [process(job, rank, 3, LONG, kill if rank == victim else "pass") for rank in range(3)]
    said = [rank.communicate(timeout=LONG)[0] for rank in ranks]
    assert ranks[victim].returncode == -signal.SIGKILL
    for rank in {0, 1, 2} - {victim}:
        kind, took, text = said[rank].split(maxsplit=2)
        assert kind == "PeerLostError" and text.startswith(f"rank {victim} "), said[rank]
        assert float(took) < QUICK


@pytest.mark.processes
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_stopped_while_it_attaches(job: str, victim: int) -> None:
    stop = "os.kill(os.getpid(), signal.SIGSTOP)"
    ranks = [process(job, rank, 3, 1.5, stop if rank == victim else "pass") for rank in range(3)]
    others = [ranks[rank] for rank in range(3) if rank != victim]
    try:
        said = [rank.communicate(timeout=LONG)[0] for rank in others]
    finally:
        ranks[victim].kill()
        ranks[victim].communicate()
    expected = "rank 0 came, but stopped answering" if victim == 0 else "ranks [1] stopped answering"
    for line in said:
        kind, took, text = line.split(maxsplit=2)
        assert kind == "CollectiveTimeoutError" and expected in text, line
        assert float(took) < 1.5 + QUICK  # of those that come late less than 1.5


def test_an_unknown_user_is_ours_only_where_signals_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where our own number is the one that unknown users are shown as."""
    overflow = wire._overflow_uid()
    monkeypatch.setattr(os, "geteuid", lambda: overflow)

    def is_ours(pid: int, uid: int) -> bool:
        monkeypatch.setattr(wire, "peer", lambda _: (pid, uid))
        with socket.socket() as connection:
            return wire.is_ours(connection)

    assert is_ours(os.getpid(), overflow)
    assert not is_ours(0, overflow)
    assert not is_ours(os.getpid(), overflow - 1)

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert not is_ours(os.getpid(), overflow)


def test_rank_0_without_descriptors_says_so_at_once(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def accept(listener: socket.socket) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    ranks = [Rank(job, rank, 2) for rank in range(2)]
    check_all_raise(ranks[:1], errors.UnavailableError, "Too many open files", "ulimit -n")
    check_all_raise(ranks[1:], errors.PeerLostError, "rank 0 of 2 ended")


@pytest.mark.processes
@pytest.mark.parametrize("spare", [1, 3, 5])
def test_where_descriptors_are_short_rank_0_says_so(ranks: list[subprocess.Popen[str]], spare: int) -> None:
    script = f"""
        import os, resource
        import gpucomm, gpucomm.launch.start
        if os.environ["GPUCOMM_RANK"] == "0":
            have = len(os.listdir("/proc/self/fd")) - 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (have + {spare}, have + {spare}))
        try:
            gpucomm.init(timeout=20)
        except gpucomm.errors.UnavailableError as error:
            print(error)
    """
    ranks += rank_processes.start(textwrap.dedent(script), [{}, {}])
    out, err = ranks[0].communicate(timeout=30)
    assert "Too many open files" in out, err


@pytest.mark.parametrize("step", ["socket", "bind", "connect"])
def test_without_unix_sockets_a_sentence_says_so(
    job: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if step == "socket":
        monkeypatch.setattr(socket, "socket", refuse)
    else:
        monkeypatch.setattr(socket.socket, step, refuse)
    rank = Rank(job, int(step == "connect"), 2)
    check_all_raise([rank], errors.UnavailableError, "Operation not permitted")
