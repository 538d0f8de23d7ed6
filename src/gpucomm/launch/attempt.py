"""How ranks meet in a store: launchers that start all anew keep the one in which those before have met."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from gpucomm import threads
from gpucomm.errors import CollectiveTimeoutError, Error, PeerLostError, UnavailableError

__all__ = ["all_say", "answering", "gloo_group", "meeting", "own_store", "said_by", "within"]

_T = TypeVar("_T")
_LATE_S = 2.0  # after a timeout of torch's own, which counts whole seconds, and whose error says more


def own_store(store: Any, rank: int, world: int, timeout_s: float) -> Any:
    """A part of the group's store that no group of this name has used before.

    Groups of a job that initialises torch.distributed once more have the names of the first ones, and where
    the launcher keeps the store, the first ones' addresses are still there.

    Args:
        store: the group's, by torch.distributed.
        rank: this rank.
        world: how many ranks the group has.
        timeout_s: until the store has answered.

    Raises:
        CollectiveTimeoutError: it has not.
    """
    from torch.distributed import PrefixStore

    # Where ranks of an attempt have failed before this, the others have counted already. Agents of several
    # nodes count attempts each by itself.
    one_agent = os.environ.get("GROUP_WORLD_SIZE") == "1"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if one_agent else "of all"
    store = PrefixStore(f"attempt {attempt}", store)
    came = within(timeout_s, f"rank {rank} of {world}", lambda: store.add("gpucomm", 1))
    return PrefixStore(f"gpucomm {(came - 1) // world}", store)


def all_say(mine: str, store: Any, rank: int, world: int, timeout_s: float, whose: str) -> list[bytes]:
    """What every rank says in a store that is theirs alone, by rank.

    Args:
        mine: what this rank says; what it said before in this store counts, as others may know it.
        store: a torch.distributed.Store.
        rank: this rank.
        world: how many there are.
        timeout_s: until all have said something.
        whose: the store is, for the error.

    Raises:
        CollectiveTimeoutError: some ranks did not come; the text names them.
        PeerLostError: the store does not answer.
    """
    keys = [f"member {member}" for member in range(world)]

    def meet() -> list[bytes]:
        if not store.check([keys[rank]]):
            store.set(keys[rank], mine)
        try:
            store.wait(keys, timedelta(seconds=timeout_s))
        except RuntimeError as error:
            missing = [member for member, key in enumerate(keys) if not store.check([key])]
            raise CollectiveTimeoutError(
                f"rank {rank} of {world} waited {timeout_s:.3g} s in the store of {whose}"
                f" for ranks {missing}, which did not come"
            ) from error
        return [store.get(key) for key in keys]

    with answering(f"rank {rank} of {world}", whose):
        return within(timeout_s, f"rank {rank} of {world}", meet)


def gloo_group(name: str, store: Any, rank: int, world: int, timeout_s: float) -> Any:
    """A Gloo group of its own.

    Args:
        name: of its part of the store.
        store: where its ranks meet, a torch.distributed.Store.
        rank: this rank.
        world: how many there are.
        timeout_s: until they have met, and of its messages.

    Returns:
        The ProcessGroupGloo.

    Raises:
        RuntimeError: as torch says it.
        CollectiveTimeoutError: the store does not answer.
    """
    from torch.distributed import PrefixStore, ProcessGroupGloo

    patience, place = timedelta(seconds=timeout_s), PrefixStore(name, store)
    return within(
        timeout_s, f"rank {rank} of {world}", lambda: ProcessGroupGloo(place, rank, world, patience)
    )


def within(timeout_s: float, where: str, call: Callable[[], _T]) -> _T:
    """Makes a call of torch's store, which may wait for ever where the network loses what it asks.

    Args:
        timeout_s: until it has ended.
        where: which rank this is.
        call: made on a thread of its own, which is left to its fate where it does not end.

    Returns:
        What it returns, or raises.

    Raises:
        CollectiveTimeoutError: it has not ended, a little after it should have by its own timeout.
        UnavailableError: there is no thread to be had.
    """
    outcome: Future[_T] = Future()

    def make() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threads.start(make, name="gpucomm-store", purpose="ask torch's store on", where=f" ({where})")
    if not wait([outcome], min(timeout_s + _LATE_S, threading.TIMEOUT_MAX)).done:
        raise CollectiveTimeoutError(
            f"{where}: torch's store has not answered within {timeout_s:.3g} s, the network or the host of it"
            " may be gone"
        )
    return outcome.result()


@contextmanager
def meeting(where: str, timeout_s: float, since: float) -> Iterator[None]:
    """Tells of ranks that do not meet, for which torch has errors of its own.

    Args:
        where: which rank this is.
        timeout_s: that they have to meet.
        since: when that began, by time.monotonic().

    Raises:
        CollectiveTimeoutError: it took too long.
        UnavailableError: something else was wrong.
        Error: as in the block.
    """
    try:
        yield
    except Error:  # ours, which says what it is
        raise
    except RuntimeError as error:
        late = time.monotonic() - since >= 0.9 * timeout_s  # torch counts from a little later
        raise (CollectiveTimeoutError if late else UnavailableError)(
            f"{where} could not meet the other ranks by torch.distributed"
            f"{f' within {timeout_s:g} s' if late else ''}: {error}"
        ) from error


@contextmanager
def answering(where: str, whose: str) -> Iterator[None]:
    """Tells of a store that does not answer any more, for which torch has errors of its own.

    Args:
        where: which rank this is.
        whose: the store is.

    Raises:
        PeerLostError: it does not.
    """
    try:
        yield
    except Error:  # ours, which says what it is
        raise
    except RuntimeError as error:
        raise PeerLostError(
            f"{where}: the store of {whose} does not answer, the process that serves it may have ended"
            f" ({said_by(error).splitlines()[0]})"
        ) from error


def said_by(error: Exception) -> str:
    """The text of an error, or its class: a MemoryError has none."""
    return str(error) or type(error).__name__
