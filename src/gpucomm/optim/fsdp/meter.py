"""What the collectives of a model cost, by their kind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from gpucomm.comm import Communicator, Work

__all__ = ["Meter"]


class Meter:
    """Counts calls, bytes and waiting on one communicator.

    Its calls run one at a time, in the order of issue. So a blocking call waits for the asynchronous ones
    before it anyhow, and these can be waited for first: then every byte belongs to one kind of call.

    Args:
        comm: whose counters are read.

    Attributes:
        counts: by kind: calls, how many of them were coded, bytes_sent, and exposed_s, the seconds that the
            caller waited.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._started: list[Work] = []  # not yet waited for, all of one kind, in the order of issue
        self._account: dict[str, Any] = {}  # theirs
        self._bytes_before = 0
        self.counts: dict[str, dict[str, Any]] = {}

    @contextlib.contextmanager
    def blocking(self, kind: str, calls: int = 1) -> Iterator[dict[str, Any]]:
        """Books the calls inside, as so many, to the account that it yields."""
        self.settle()
        account = self._book(kind, calls)
        before, begin = self._bytes(), perf_counter()
        yield account
        account["exposed_s"] += perf_counter() - begin
        account["bytes_sent"] += self._bytes() - before

    def start(self, kind: str, issue: Callable[[], Work], *, coded: bool) -> Work:
        """Issues an asynchronous call; its bytes are booked once it has been waited for."""
        if not self._started:
            self._bytes_before = self._bytes()
        work = issue()
        self._account = self._book(kind)
        self._account["coded"] += coded
        self._started.append(work)
        return work

    def settle(self, last: Work | None = None) -> None:
        """Waits for the asynchronous calls up to one of them; None: for all."""
        if not self._started or (last is not None and last not in self._started):
            return
        begin, ended = perf_counter(), None
        while self._started and (last is None or ended is not last):
            ended = self._started.pop(0)
            ended.wait()
        self._account["exposed_s"] += perf_counter() - begin
        if not self._started:
            self._account["bytes_sent"] += self._bytes() - self._bytes_before

    def _book(self, kind: str, calls: int = 1) -> dict[str, Any]:
        account = self.counts.setdefault(kind, {"calls": 0, "coded": 0, "bytes_sent": 0, "exposed_s": 0.0})
        account["calls"] += calls
        return account

    def _bytes(self) -> int:
        return int(self._comm.stats()["bytes_sent"])
