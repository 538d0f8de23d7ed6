"""One run: how much is measured, and the times of collectives on emulated links."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from gpucomm import _core, cost
from gpucomm.bench.metrics import ONE_THREAD
from gpucomm.comm import Communicator
from gpucomm.launch import local
from gpucomm.launch.ranks import Ranks
from gpucomm.launch.rendezvous import share_memory
from gpucomm.links import host_bound, parse_emulated, parse_spec
from gpucomm.reproduce.claims import setting

__all__ = ["Call", "Cell", "Run", "Span", "last_ends", "measure_calls", "ratio", "start_together", "unlinked"]

_SHORT_S = 0.3  # what takes less is measured more often
_SUSPECT = 1.05  # times the model: emulated links are better than that on an idle machine
_TIMEOUT_S = 120.0
_AWAKE_S = 0.001


class Cell(NamedTuple):
    """A message and the links under it.

    Attributes:
        kind: "switch" or "chain".
        nbytes: of the message.
        x: n beta / alpha.
        alpha: seconds a message; with x it gives beta.
    """

    kind: str
    nbytes: int
    x: float
    alpha: float

    @property
    def links(self) -> str:
        """The links as a text."""
        return f"{self.kind},beta={self.x * self.alpha / self.nbytes!r}s,overhead={self.alpha!r}s"

    @property
    def model(self) -> _core.Links:
        """The links as the cost model takes them."""
        return parse_spec(self.links).links


class Call(NamedTuple):
    """A collective, an algorithm, and how finely the message is cut."""

    collective: str
    algorithm: str
    segments: int = 1

    def model_s(self, cell: Cell, ranks: int) -> float:
        """What the cost model says it takes."""
        return cost.cost(
            self.collective,
            self.algorithm,
            world=ranks,
            nbytes=cell.nbytes,
            links=cell.model,
            segments=self.segments,
        )


@dataclass
class Run:
    """How much is done, and what has been measured so far.

    Attributes:
        quick: few sizes, worlds and repeats.
        hurry: divides all times and sizes, for tests: what is measured then is the machine, not the links.
        tell: called with what is being done.
        left_out: what could not be done here, and why.
    """

    quick: bool = False
    hurry: int = 1
    tell: Callable[[str], None] = lambda text: None
    left_out: list[str] = field(default_factory=list)
    _again_s: float = field(init=False)
    _known: dict[Hashable, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._again_s = 0.0 if self.hurry > 1 else 5.0 if self.quick else 120.0

    def cell(self, kind: str, nbytes: int, x: float, alpha: float) -> Cell:
        """A cell of this run."""
        return Cell(kind, nbytes // self.hurry, x, alpha / self.hurry)

    def worlds(self) -> tuple[int, ...]:
        """The numbers of ranks over which a curve is measured."""
        return (2, 8) if self.quick else (2, 3, 4, 5, 6, 7, 8)

    def repeats(self, cell: Cell) -> int:
        """How often a call is measured."""
        return 3 if self.quick or cell.x * cell.alpha > _SHORT_S else 5

    def times(self, cell: Cell, ranks: int, *calls: Call) -> list[list[float]]:
        """Seconds of each call, of each repeat, from the first rank's start to the last one's end.

        The ranks are processes; the repeats rotate over the calls, so that what disturbs one disturbs all.

        Args:
            cell: the message, float32, and the links.
            ranks: how many.
            calls: in place, root 0.

        Returns:
            For each call its repeats.
        """
        work = partial(self._measured, cell, ranks, calls)
        return self.once((cell, ranks, calls), work)  # type: ignore[no-any-return]

    def _measured(self, cell: Cell, ranks: int, calls: Sequence[Call]) -> list[list[float]]:
        """Where the median is off the model, all is measured once more, and counts together with the first.

        For a machine that does other work meanwhile; not more often than `_again_s` allows.
        """
        names = ", ".join(dict.fromkeys(f"{call.collective} by {call.algorithm}" for call in calls))
        self.tell(f"{names}: {ranks} ranks, {cell.kind}, x = {cell.x:g}")
        models = [call.model_s(cell, ranks) for call in calls]
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(2):
            spans = self.on_ranks(cell, ranks, measure_calls, cell.nbytes, calls, self.repeats(cell))
            for mine, more in zip(times, last_ends(spans), strict=True):
                mine.extend(more)
            calm = all(median(some) < _SUSPECT * model for some, model in zip(times, models, strict=True))
            if calm or not self.may_again(sum(map(sum, times))):
                break
        return times

    def may_again(self, seconds: float) -> bool:
        """Whether there is time to measure once more what is suspect; takes it."""
        if seconds > self._again_s:
            return False
        self._again_s -= seconds
        return True

    def once(self, key: Hashable, work: Callable[[], Any]) -> Any:
        """What `work` gives, which is done at the first call of this key."""
        if key not in self._known:
            self._known[key] = work()
        return self._known[key]

    def on_ranks(self, cell: Cell, ranks: int, job: Callable[..., Any], *args: Any) -> list[Any]:
        """Runs `job(comm, *args)` on every rank of a fresh world over the cell's links."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # rows are marked instead
            world = local(ranks, links=cell.links, env=ONE_THREAD, timeout=_TIMEOUT_S)
        with world:
            return world.run(job, *args)

    def setting(self, cell: Cell, ranks: int, **more: Any) -> dict[str, Any]:
        """The setting of a row that was measured on emulated links."""
        return setting(
            ranks=ranks,
            nbytes=cell.nbytes,
            links=cell.links,
            x=cell.x,
            **{"repeats": self.repeats(cell), **more},
        )

    def note(self, cell: Cell, ranks: int, text: str) -> str:
        """The note of a row: the text, marked where the links were too fast for this machine."""
        mark = self.once((cell, ranks), lambda: host_bound(parse_emulated(cell.links), ranks))
        return "; ".join(part for part in (text, mark) if part)


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of some times over that of others."""
    return median(over) / median(under)


Span = tuple[float, float]  # begin and end, by the clock that all processes of a machine share


def last_ends(spans: Sequence[Sequence[Sequence[Span]]]) -> list[list[float]]:
    """Of each call its repeats, from the first start to the last end, where each rank gave its spans."""
    return [
        [max(end for _, end in some) - min(begin for begin, _ in some) for some in zip(*by_rank, strict=True)]
        for by_rank in zip(*spans, strict=True)
    ]


def measure_calls(comm: Communicator, nbytes: int, calls: Sequence[Call], repeats: int) -> list[list[Span]]:
    """This rank's begin and end of each repeat of each call, float32, by the machine's clock."""
    import time

    import numpy as np

    calls = [Call(*call) for call in calls]  # lists, where JSON has brought them
    x = np.ones(nbytes // 4, np.float32)
    spans: list[list[Span]] = [[] for _ in calls]
    with meeting(comm) as apart:
        for _ in range(repeats):
            for call, mine in zip(calls, spans, strict=True):
                collective = getattr(comm, call.collective)
                start_together(apart)
                begin = time.monotonic()
                collective(x, algorithm=call.algorithm, segments=call.segments)
                mine.append((begin, time.monotonic()))
                x.fill(1)  # sums of sums must not overflow
    return spans


def meeting(comm: Communicator) -> AbstractContextManager[Communicator]:
    """The same ranks without emulated links: who has ended a call disturbs nobody who is still in it."""
    return unlinked(comm) if comm.emulation else nullcontext(comm)


def unlinked(comm: Communicator) -> Communicator:
    """The same ranks, processes of this machine, over its memory: no links are emulated."""
    name = f"{comm.broadcast_object(secrets.token_hex(8))} without links"
    ranks = Ranks(comm.rank, comm.world, name, "without links", nodes=tuple(comm.nodes))
    return share_memory(ranks, comm.timeout)


def start_together(comm: Communicator) -> None:
    """Waits for a moment that all ranks agree on, so that none has a start."""
    import os
    import time

    import numpy as np

    latest = comm.all_reduce(np.array([time.monotonic()]), op="max", algorithm="direct", segments=1)
    moment = float(latest[0]) + 0.005 + 4 * comm.world * comm.links.alpha
    time.sleep(max(0.0, moment - _AWAKE_S - time.monotonic()))
    while time.monotonic() < moment:  # awake already: a sleeper is late, each by another time
        os.sched_yield()
