"""Starts processes from a thread that lasts as long as this process.

The kernel sends a parent-death signal when the *thread* that started the child ends, so a child started by a
short-lived thread would be killed too early, and one that did not ask for the signal could outlive us.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from gpucomm import threads

__all__ = ["popen"]

_Start = Callable[[], "subprocess.Popen[bytes]"]
_Order = tuple[_Start, "Future[subprocess.Popen[bytes]]"]


class _Starter:
    """The thread, made on first use; a forked child makes its own."""

    lock = threading.Lock()
    orders: SimpleQueue[_Order] = SimpleQueue()
    pid = 0


def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """`subprocess.Popen(command, **options)`, whose parent thread lasts."""
    with _Starter.lock:
        if _Starter.pid != os.getpid():
            orders: SimpleQueue[_Order] = SimpleQueue()
            threads.start(_serve, orders, name="gpucomm-start", purpose="start processes from")
            _Starter.pid, _Starter.orders = os.getpid(), orders
    future: Future[subprocess.Popen[bytes]] = Future()
    _Starter.orders.put((lambda: subprocess.Popen(command, **options), future))
    return future.result()


def _serve(orders: SimpleQueue[_Order]) -> None:
    while True:
        start, future = orders.get()
        try:
            future.set_result(start())
        except BaseException as error:
            future.set_exception(error)
