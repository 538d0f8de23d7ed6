"""Threads of our own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gpucomm.errors import UnavailableError

__all__ = ["start"]


def start(
    target: Callable[..., None], *args: Any, name: str, purpose: str, where: str = ""
) -> threading.Thread:
    """Starts a daemon: others are joined at exit, before any handler could end what they wait for.

    Args:
        target: what it runs.
        args: of that.
        name: the thread's.
        purpose: what it is for, after "no thread to".
        where: which rank this is, as it ends the sentence.

    Returns:
        The thread.

    Raises:
        UnavailableError: there is none to be had.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise UnavailableError(f"no thread to {purpose}: {error} (ulimit -u){where}") from None
    return thread
