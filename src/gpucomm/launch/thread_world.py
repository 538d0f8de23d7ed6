"""A local world whose ranks are threads of this process."""

from __future__ import annotations

import contextlib
import queue
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from gpucomm import _core, threads
from gpucomm.comm import Communicator
from gpucomm.errors import Error, RankFailedError
from gpucomm.launch.kept import bound
from gpucomm.launch.opening import emulation
from gpucomm.launch.start import frozen_if_asked
from gpucomm.launch.worlds import World

__all__ = ["ThreadWorld"]

# Seconds that the others have to end by themselves once a rank has failed.
GRACE = 1.0


class ThreadWorld(World):
    """Ranks that share this process's memory and its GIL."""

    def __init__(self, ranks: int, timeout: float, links: str = "", nodes: Sequence[int] = ()) -> None:
        super().__init__(ranks)
        region = _core.Region(ranks)
        how: dict[str, Any] = {"region": region, "timeout": timeout, "nodes": list(nodes)}
        how |= emulation(links, ranks)
        self._comms = [frozen_if_asked(Communicator("local", rank, ranks, **how)) for rank in range(ranks)]

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        outcomes: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()

        def work(rank: int) -> None:
            comm = self._comms[rank]
            try:
                with bound(comm):
                    outcomes.put((rank, fn(comm, *args, **kwargs), None))
            except BaseException as error:
                outcomes.put((rank, None, error))

        try:
            for rank in range(self.ranks):
                threads.start(work, rank, name=f"gpucomm-rank-{rank}", purpose=f"be rank {rank}")
            return self._await(outcomes)
        except BaseException as error:
            if not isinstance(error, RankFailedError):
                self._end(f"its last call was interrupted by {type(error).__name__}")
            raise

    def _await(self, outcomes: queue.SimpleQueue[tuple[int, Any, BaseException | None]]) -> list[Any]:
        results: dict[int, Any] = {}
        failures: dict[int, BaseException] = {}
        deadline: float | None = None
        while len(results) + len(failures) < self.ranks:
            try:
                wait = None if deadline is None else max(0.0, deadline - time.monotonic())
                rank, result, error = outcomes.get(timeout=wait)
            except queue.Empty:
                if self._closed:  # they do something else, and threads cannot be ended
                    _fail(failures)
                # They wait for a rank that will not come: closing the communicators wakes them.
                self._end(f"rank {next(iter(failures))} failed while others were busy")
                deadline = time.monotonic() + GRACE
                continue
            if error is None:
                results[rank] = result
            else:
                failures[rank] = error
            if failures and not self._closed:
                deadline = deadline or time.monotonic() + GRACE
        if failures:
            _fail(failures)
        return [results[rank] for rank in range(self.ranks)]

    def _end(self, why: str) -> None:
        self._closed = self._closed or why
        for comm in self._comms:
            with contextlib.suppress(Error):
                comm.close()


def _fail(failures: dict[int, BaseException]) -> None:
    rank, error = next(iter(failures.items()))
    summary = "".join(traceback.format_exception_only(error)).strip()
    raise RankFailedError(f"rank {rank} raised {summary}", rank) from error
