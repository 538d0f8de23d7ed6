"""A local world whose ranks are fresh interpreters.

Never a fork of this process: after torch has used threads, a forked child hangs.
"""

from __future__ import annotations

import os
import secrets
import selectors
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

from gpucomm import _core
from gpucomm.errors import CollectiveTimeoutError, InvalidArgumentError, RankFailedError, UnavailableError
from gpucomm.launch.member import Member
from gpucomm.launch.processes import (
    base_environment,
    describe_end,
    end_all,
    rank_environment,
    starting,
    wait_all,
)
from gpucomm.launch.worlds import World

__all__ = ["ProcessWorld"]

# Seconds that the others have to end by themselves once a rank has failed, and that a worker has to exit.
GRACE = 1.0
_LONGEST_WAIT_S = 3600.0  # what a selector takes is bounded; who waits longer looks again


class ProcessWorld(World):
    """Ranks as processes of their own.

    Attributes:
        ranks: number of ranks.
        pids: process ids of the ranks, by rank.
    """

    def __init__(
        self, ranks: int, timeout: float, env: Mapping[str, str], links: str = "", nodes: Sequence[int] = ()
    ) -> None:
        super().__init__(ranks)
        self._cloudpickle = _import_cloudpickle()
        with starting(0, ranks):
            self._selector = selectors.DefaultSelector()
        self._members: list[Member] = []
        # Also at the end of the interpreter, or when nobody refers to the world any more.
        self._finalizer = weakref.finalize(self, _end_members, self._members, self._selector, os.getpid())
        try:
            self._start(timeout, env, links, nodes)
        except BaseException:
            self._end("it could not start")
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks, by rank."""
        return [member.process.pid for member in self._members]

    def _start(self, timeout: float, env: Mapping[str, str], links: str, nodes: Sequence[int]) -> None:
        settings = {
            "world": self.ranks,
            "timeout": timeout,
            "links": links,
            "nodes": list(nodes),
            "parent": os.getpid(),
        }
        job, base = secrets.token_hex(8), {**base_environment(os.environ), **env}
        memory = _core.shm_create(self.ranks) if self.ranks > 1 else -1
        try:
            for rank in range(self.ranks):
                variables = rank_environment(rank, self.ranks, job, base)
                with starting(rank, self.ranks):
                    self._members.append(Member(rank, memory, variables, settings, self._selector))
        finally:
            if memory >= 0:
                os.close(memory)
        self._await_ready(timeout)

    def _await_ready(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while missing := [member.rank for member in self._members if member.answer is None]:
            if time.monotonic() >= deadline:
                raise CollectiveTimeoutError(
                    f"ranks {missing} of the {self.ranks} of a local world were not ready after {timeout:g} s"
                )
            self._step(deadline)
            self._check_ends("while it started")

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        try:
            message = self._cloudpickle.dumps((fn, args, kwargs))
        except Exception as error:
            raise InvalidArgumentError(
                f"the function or its arguments cannot be sent to the ranks: {error}"
            ) from error
        try:
            self._step(time.monotonic())
            self._check_ends("between two calls")
            for member in self._members:
                member.ask(message)
            self._await_answers()
        except BaseException as error:
            if not self._closed and not isinstance(error, RankFailedError):
                self._end(f"its last call was interrupted by {type(error).__name__}")
            raise
        return [member.take_result() for member in self._members]

    def _await_answers(self) -> None:
        failed: list[Member] = []
        deadline: float | None = None
        while busy := [member.rank for member in self._members if member.answer is None]:
            if deadline is not None and time.monotonic() >= deadline:
                self._end(f"rank {failed[0].rank} failed while ranks {busy} were busy")
                break
            self._step(deadline)
            self._check_ends("in a call")
            failed += [member for member in self._failed() if member not in failed]
            if failed and deadline is None:
                deadline = time.monotonic() + GRACE
        if not self._closed:
            self._finish_output()
        if failed:
            _fail(failed)

    def _failed(self) -> list[Member]:
        return [member for member in self._members if member.answer and member.answer[0] == "error"]

    def _check_ends(self, when: str) -> None:
        """Raise where a worker has ended; it never does by itself."""
        ended = [member for member in self._members if member.ended]
        if not ended:
            return
        wait_all([member.process for member in ended], GRACE)
        first = min(ended, key=lambda member: (member.process.returncode is None, member.rank))
        self._finish_output()
        why = f"{describe_end(first.rank, first.process)} {when}"
        self._end(why)
        raise RankFailedError(f"{why}; the local world is closed", first.rank)

    def _step(self, deadline: float | None) -> None:
        """Wait for something to happen, and deal with it."""
        wait = None if deadline is None else min(max(0.0, deadline - time.monotonic()), _LONGEST_WAIT_S)
        for key, events in self._selector.select(wait):
            key.data(events)

    def _finish_output(self) -> None:
        for member in self._members:
            member.finish_output()

    def close(self) -> None:
        """End the ranks; nothing happens where they have ended already."""
        self._closed = self._closed or "its close() was called"
        self._finalizer()

    def _end(self, why: str) -> None:
        self._closed = self._closed or why
        end_all([member.process for member in self._members], GRACE)  # they may be busy
        self._finalizer()


def _fail(failed: list[Member]) -> NoReturn:
    """Raise what the first of them raised; the others are named, they often fail in consequence."""
    (rank, (summary, trace)), *others = [
        (member.rank, member.answer[1]) for member in failed if member.answer
    ]
    also = "".join(f"\nrank {other} raised {text}" for other, (text, _) in others)
    raise RankFailedError(f"rank {rank} raised {summary}{also}\n\non rank {rank}:\n{trace}", rank)


def _end_members(members: list[Member], selector: selectors.BaseSelector, owner: int) -> None:
    """End the processes, kindly where they are idle, and print what they still wrote."""
    if os.getpid() != owner:
        return  # in a forked child
    processes = [member.process for member in members]
    selector.close()
    for member in members:
        member.hang_up()
    wait_all(processes, GRACE)
    end_all(processes, GRACE)
    for member in members:
        member.finish_output()
        member.release()


def _import_cloudpickle() -> ModuleType:
    try:
        import cloudpickle
    except ImportError:
        raise UnavailableError(
            "processes as ranks need cloudpickle, which is not installed: pip install 'gpucomm[local]'"
        ) from None
    return cloudpickle  # type: ignore[no-any-return]
