"""`gpucomm.local(n)`: ranks from inside a program or a notebook cell."""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from gpucomm.comm import Communicator, checked_timeout, is_whole
from gpucomm.errors import ClosedError, InvalidArgumentError
from gpucomm.launch.asked import parse_nodes

__all__ = ["World", "local"]

Params = ParamSpec("Params")
Result = TypeVar("Result")


class World(ABC):
    """Some ranks that stay alive between calls; made by `local`, a context manager.

    Attributes:
        ranks: number of ranks.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._closed = ""  # why, once it is
        self._busy = threading.Lock()

    def run(
        self,
        fn: Callable[Concatenate[Communicator, Params], Result],
        /,
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> list[Result]:
        """Call `fn(comm, *args, **kwargs)` on every rank and wait for all.

        There is no deadline for what `fn` computes; its collectives have the timeout of the world.

        Args:
            fn: any function, also a closure or one typed into a notebook cell.
            args: passed to every rank.
            kwargs: passed to every rank.

        Returns:
            The results, by rank.

        Raises:
            RankFailedError: `fn` raised on a rank, or the rank's process ended; the text has its traceback,
                or `__cause__` is its exception where ranks are threads.
                Where other ranks are still busy shortly after, the world is closed.
            ClosedError: the world was closed; the text says why.
            InvalidArgumentError: a call is running already, or `fn` cannot be sent to another process.
        """
        if self._closed:
            raise ClosedError(
                f"this local world is closed: {self._closed}; make a new one with gpucomm.local"
            )
        if not self._busy.acquire(blocking=False):
            raise InvalidArgumentError("run was called while another call of this world is running")
        try:
            return self._call(fn, args, kwargs)
        finally:
            self._busy.release()

    def close(self) -> None:
        """End the ranks; nothing happens where they have ended already."""
        self._end("its close() was called")

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]: ...

    @abstractmethod
    def _end(self, why: str) -> None: ...


def local(
    ranks: int,
    *,
    threads: bool = False,
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
    links: str | None = None,
    nodes: str | None = None,
) -> World:
    """Start ranks on this machine, from a script or a notebook cell.

    Args:
        ranks: how many, at least 1.
        threads: False starts a fresh interpreter per rank: functions and results travel by cloudpickle, and
            what a rank prints appears here with "[rank] " before each line. True makes the ranks threads of
            this process, which share its objects and its GIL: quick to start, good for tests.
        timeout: seconds that the ranks have to start, and the default of their communicators.
        env: variables for the ranks' processes, on top of this process's.
        links: slower links to emulate between the ranks, such as "switch:1Gbit,latency=0.5ms,overhead=50us",
            "chain:400Mbit,half", "switch:100Mbit,jitter=50us,seed=1", "nodes:1Gbit,of=2x2" or, with rates of
            single ranks and from later times on, "switch:1Gbit,rank2=100Mbit,5s=200Mbit"; None: as fast as
            they are.
            A RuntimeWarning says where they are too fast for this machine.
        nodes: takes the ranks as if on several nodes: NODESxRANKS, as in "2x2", or the node of each, as in
            "0,0,1"; None: one node. They still share memory.

    Returns:
        A world, to be used in a `with` statement or closed by `close()`.

    Raises:
        InvalidArgumentError: an argument is out of range, `links` or `nodes` cannot be read, or `env` is
            given for threads.
        UnavailableError: cloudpickle is not installed.
        RankFailedError: a rank's process ended before it was ready.
        CollectiveTimeoutError: some ranks were not ready by the timeout.
    """
    if not is_whole(ranks) or ranks < 1:
        raise InvalidArgumentError(f"ranks={ranks!r} must be a whole number of at least 1")
    ranks = int(ranks)
    timeout = checked_timeout(timeout)
    if threads and env is not None:
        raise InvalidArgumentError("env= needs processes: threads share the environment of this process")
    _check_variables(env)
    if nodes is not None and not isinstance(nodes, str):
        raise InvalidArgumentError(f"nodes={nodes!r} must be a text such as '2x2' or '0,0,1'")
    where = parse_nodes(nodes or "", ranks)
    text = _links(links, ranks, where)
    if threads:
        from gpucomm.launch.thread_world import ThreadWorld

        return ThreadWorld(ranks, timeout, text, where)
    from gpucomm.launch.process_world import ProcessWorld

    return ProcessWorld(ranks, timeout, env or {}, text, where)


def _check_variables(env: Any) -> None:
    if env is not None and not isinstance(env, Mapping):
        raise InvalidArgumentError(f"env must map names of variables to texts, got {env!r}")
    for name, value in (env or {}).items():
        texts = isinstance(name, str) and isinstance(value, str)
        if not texts or not name or "=" in name or "\0" in name + value:
            raise InvalidArgumentError(
                f"env must map names of variables, without =, to texts, without NULs, got {name!r}: {value!r}"
            )


def _links(links: str | None, ranks: int, nodes: Sequence[int]) -> str:
    if links is None:
        return ""
    from gpucomm.links import host_bound, parse_emulated

    if not isinstance(links, str):
        raise InvalidArgumentError(f"links={links!r} must be a text such as 'switch:1Gbit,latency=0.5ms'")
    spec = parse_emulated(links)
    spec.check(ranks, nodes)
    if marked := host_bound(spec, ranks):
        warnings.warn(marked, RuntimeWarning, stacklevel=3)
    return spec.canonical
