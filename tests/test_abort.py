"""abort() returns within a second, whatever is under way; what waits, on this rank and on others, raises."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import PROMPT_S, run_ranks

import gpucomm
from gpucomm import Communicator
from gpucomm.errors import ClosedError


def ends(call: Callable[[], Any]) -> list[str]:
    """What is wrong about the end of a call that rank 0 aborts."""
    began = time.monotonic()
    try:
        call()
    except ClosedError as error:
        named = re.search(r"rank 0 of \d called abort\(\)", str(error))
        soon = time.monotonic() - began < PROMPT_S
        return [] if named and soon else [str(error)]
    return ["no error"]


def abort(comm: Communicator) -> list[str]:
    began = time.monotonic()
    comm.abort()
    return ["abort() takes long"] if time.monotonic() - began > PROMPT_S else []


def while_a_thread_waits(comm: Communicator) -> list[str]:
    """In a collective that no other rank comes to."""
    if comm.rank:
        return ends(lambda: comm.recv(np.ones(1), 0))
    wrong: list[str] = []

    def call() -> None:
        wrong.extend(ends(lambda: comm.all_reduce(np.ones(9), algorithm="ring")))

    thread = threading.Thread(target=call)
    thread.start()
    while thread.is_alive() and not any(r["state"] != "done" and r["rank"] == 0 for r in comm.flight_log()):
        time.sleep(0.001)
    found = abort(comm)
    thread.join()
    return found + wrong


def while_nobody_comes(comm: Communicator) -> list[str]:
    """To asynchronous calls, the second of which waits for the first."""
    if comm.rank:
        return ends(lambda: comm.recv(np.ones(1), 0))
    works = [comm.all_reduce(np.ones(n), algorithm="ring", async_op=True) for n in (100_000, 9)]
    wrong = abort(comm) + ([] if all(work.done() for work in works) else ["abort() leaves calls under way"])
    return wrong + [text for work in works for text in ends(work.wait)]


def while_calls_move(comm: Communicator) -> list[str]:
    """Asynchronous ones of all ranks, several at once."""
    wrong: list[str] = []

    def calls() -> None:
        works = []
        while True:
            works.append(comm.all_reduce(np.ones(200_000), algorithm="ring", async_op=True))
            if len(works) > 4:
                works[-5].wait()
            if len(works) == 10 and comm.rank == 0:
                wrong.extend(abort(comm))

    return ends(calls) + wrong


WAYS = [while_a_thread_waits, while_nobody_comes, while_calls_move]


def every_way(comm: Communicator) -> list[tuple[str, str]]:
    """What is wrong on this rank, and in which way."""
    found = []
    for way in WAYS:
        with comm.subset(range(comm.world)) as group:
            wrong = way(group) + ends(group.barrier) + ([] if group.closed else ["not closed"])
            found += [(way.__name__, text) for text in wrong]
    return found


def test_of_threads() -> None:
    assert run_ranks(3, every_way) == [[]] * 3


def of_a_process(comm: Communicator) -> list[tuple[str, str]]:
    import test_abort

    return test_abort.every_way(comm)


@pytest.mark.processes
def test_of_processes() -> None:
    with gpucomm.local(3, env={"PYTHONPATH": str(Path(__file__).parent)}) as world:
        assert world.run(of_a_process) == [[]] * 3
