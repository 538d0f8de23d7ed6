"""Calls that send several messages: each makes all of its own before another thread's may begin."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["turn"]


def turn(comm: Communicator) -> AbstractContextManager[Any]:
    """A block during which no other thread's block of this communicator runs.

    Else messages of two calls that are alike might be taken for one another: one rank's may begin with the
    one, another rank's with the other, and go on in another order.

    Args:
        comm: on which the block makes calls.
    """
    # Again: a signal's handler may call, too. A child of fork makes no calls, and must not wait for the lost.
    held = vars(comm).get("_turn") or vars(comm).setdefault("_turn", (threading.RLock(), os.getpid()))
    return held[0] if held[1] == os.getpid() else nullcontext()
