"""Ranks as threads of this process: the breadth of the tests runs on these."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gpucomm import Communicator, _core

TIMEOUT_S = 20.0
PROMPT_S = 5.0  # what is promised within a second, on cores that many ranks share; no timeout passes for it


def run_ranks(
    world: int, fn: Callable[[Communicator], Any], timeout: float = TIMEOUT_S, **links: Any
) -> list[Any]:
    """fn(comm) on every rank of a world of threads; results by rank, or the first rank's error."""
    outcomes = outcomes_of(world, fn, timeout, **links)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def outcomes_of(
    world: int,
    fn: Callable[[Communicator], Any],
    timeout: float = TIMEOUT_S,
    heap_bytes: int | None = None,
    **links: Any,
) -> list[Any]:
    """As run_ranks, but an error is its rank's outcome."""
    region = _core.Region(world, heap_bytes)
    outcomes: list[Any] = [None] * world

    def body(rank: int) -> None:
        with Communicator("local", rank, world, region=region, timeout=timeout, **links) as comm:
            try:
                outcomes[rank] = fn(comm)
            except Exception as error:
                outcomes[rank] = error

    # Daemons: one that hangs must not hold pytest's end up.
    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout * 4)
        assert not thread.is_alive(), "a rank hangs beyond its deadline"
    return outcomes
