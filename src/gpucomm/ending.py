"""The end of the process: collectives under way still end, but where an error ends it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpucomm.errors import Error

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["close_at_exit", "ended_by_error"]

_log = logging.getLogger("gpucomm")
_LOOK_S = 0.001


def ended_by_error() -> bool:
    """Whether an uncaught error ends the process; in an interactive session that is any error of before."""
    return hasattr(sys, "last_value") and not hasattr(sys, "ps1")


def close_at_exit(comm: Communicator, close: Callable[[], None]) -> None:
    """Calls `close` at the end of the process, where an error is logged: nobody could catch it any more.

    Before that what the other ranks may wait for ends, by its deadline at the latest.

    Args:
        comm: whose collectives are waited for, unless an error ends the process.
        close: closes it.
    """
    try:
        while comm._busy and not ended_by_error():
            time.sleep(_LOOK_S)
    finally:  # a signal may end that
        try:
            close()
        except Error as error:
            _log.error("%s", error)
