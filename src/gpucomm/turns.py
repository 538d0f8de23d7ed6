"""Calls that send several messages: each makes all of its own before another thread's may begin."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["turn"]


@contextmanager
def turn(comm: Communicator) -> Iterator[None]:
    """No other thread's block of this communicator runs meanwhile.

    Else messages of two calls that are alike might be taken for one another: one rank's may begin with the
    one, another rank's with the other, and go on in another order.

    Args:
        comm: on which the block makes calls.
    """
    # Again: a signal's handler may call, too. A child of fork makes no calls, and must not wait for the lost.
    lock, pid = vars(comm).setdefault("_turn", (threading.RLock(), os.getpid()))
    if pid != os.getpid():
        yield
        return
    with lock:
        yield
