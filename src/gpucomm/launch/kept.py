"""The communicator that `gpucomm.init()` returns again: the process's, or that of a thread."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Iterator

from gpucomm.comm import Communicator
from gpucomm.ending import close_at_exit
from gpucomm.errors import UnavailableError

__all__ = ["bound", "keep", "lock", "of_process", "of_thread", "replace"]


class _Process:
    comm: Communicator | None = None
    pid = 0  # of the process that made it: a forked child must not use its parent's


lock = threading.Lock()  # held by who looks at the process's to put another in its place
_thread = threading.local()


def of_thread() -> Communicator | None:
    """The one that is bound to this thread."""
    return getattr(_thread, "comm", None)


def of_process() -> Communicator | None:
    """The last that this process kept, open or closed; under the lock.

    Raises:
        UnavailableError: it is open, and of a process that this one was forked from.
    """
    comm = _Process.comm
    if comm is not None and not comm.closed and _Process.pid != os.getpid():
        raise UnavailableError(
            f"process {os.getpid()} was forked from rank {comm.rank}, it cannot use its communicator:"
            " start ranks as fresh processes (gpucomm run, gpucomm.local)"
        )
    return comm


def keep(comm: Communicator) -> None:
    """Make `comm` the process's, which is closed at the end of the process; under the lock."""
    if _Process.comm is None:
        atexit.register(_close)
    _Process.comm, _Process.pid = comm, os.getpid()


def _close() -> None:
    if _Process.comm is not None and _Process.pid == os.getpid():
        close_at_exit(_Process.comm, _Process.comm.close)


def replace(old: Communicator, new: Communicator) -> None:
    """Make `new` what `init` returns wherever it returned `old`."""
    with lock:
        if _Process.comm is old:
            keep(new)
            new._claim, old._claim = old._claim, None
    if of_thread() is old:
        _thread.comm = new


@contextlib.contextmanager
def bound(comm: Communicator) -> Iterator[None]:
    """Make `comm` what `init` returns in this thread."""
    _thread.comm = comm
    try:
        yield
    finally:
        del _thread.comm
