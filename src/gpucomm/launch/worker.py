"""One rank of a local world, started by `member.py` with CONTROL MEMORY, two inherited descriptors."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import socket
import sys
import threading
import traceback
from typing import Any

from gpucomm import _core, threads
from gpucomm.comm import Communicator
from gpucomm.launch import channel, kept
from gpucomm.launch.child import die_with
from gpucomm.launch.opening import emulation
from gpucomm.launch.start import frozen_if_asked

__all__ = ["main"]

# Seconds that a call in progress has to end by itself once the world has ended.
_GRACE = 0.5


def main() -> None:
    """Attach the shared memory, then answer calls until the world ends."""
    control, memory = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    # programs that the user's code starts shall not keep the world's socket
    control.set_inheritable(False)
    _line_by_line()
    settings = pickle.loads(channel.receive(control) or sys.exit(1))
    die_with(settings["parent"])
    comm = frozen_if_asked(_attach(settings, memory))
    if memory >= 0:
        os.close(memory)
    with kept.lock:
        kept.keep(comm)
    channel.send(control, pickle.dumps(("ready", None)))
    calls: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threads.start(_listen, control, calls, name="gpucomm-calls", purpose="hear of calls on")
    while (call := calls.get()) is not None:
        answer = _answer(comm, call)
        with contextlib.suppress(ConnectionError):
            channel.send(control, answer)


def _line_by_line() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _attach(settings: dict[str, Any], memory: int) -> Communicator:
    rank, world, timeout = settings["rank"], settings["world"], settings["timeout"]
    how = {"timeout": timeout, "nodes": settings["nodes"], **emulation(settings["links"], world)}
    if world == 1:
        return Communicator("local", 0, 1, region=_core.Region(1), **how)
    return Communicator("shm", rank, world, fd=memory, **how)


def _listen(control: socket.socket, calls: queue.SimpleQueue[bytes | None]) -> None:
    """Queue the calls; when the world has ended, also by a kill -9, end this process."""
    while (call := channel.receive(control)) is not None:
        calls.put(call)
    calls.put(None)
    threading.Event().wait(_GRACE)
    os._exit(1)


def _answer(comm: Communicator, call: bytes) -> bytes:
    import cloudpickle

    try:
        fn, args, kwargs = pickle.loads(call)
        result = fn(comm, *args, **kwargs)
        try:
            answer = ("result", cloudpickle.dumps(result))
        except Exception as error:
            raise TypeError(
                f"the result, a {type(result).__name__}, cannot be sent to the caller: {error}"
            ) from error
    except BaseException as error:
        answer = ("error", (_summary(error), _trace(error)))
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    return pickle.dumps(answer)


def _summary(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _trace(error: BaseException) -> str:
    ours = error.__traceback__
    trace = ours.tb_next if ours is not None and ours.tb_next is not None else ours
    return "".join(traceback.format_exception(error.with_traceback(trace))).rstrip()
