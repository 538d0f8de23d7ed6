"""torch.distributed's point-to-point messages (Gloo) as the wire between nodes."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import time
from collections import deque
from typing import Any

from gpucomm import _core, threads
from gpucomm.errors import InvalidArgumentError, UnavailableError
from gpucomm.launch.attempt import all_say, gloo_group, meeting, own_store, said_by, within
from gpucomm.launch.fabric import Fabric
from gpucomm.launch.patience import counting_down
from gpucomm.launch.ranks import Ranks

__all__ = ["open_c10d"]

_FOREVER = datetime.timedelta(days=365)  # Gloo must not time out: our own deadlines count
_FAREWELL = datetime.timedelta(seconds=2)  # how long the end of the process waits for what was sent to leave
_MOST_UNDER_WAY = 256  # more than a line has between two that are waited for, or a rank has last words
_CONTEXTS = 1 << 16
_launchers: list[Any] = []  # this attempt's part of the launcher's store: who meets in vain may try again


def open_c10d(ranks: Ranks, timeout: float, store: Any = None) -> Fabric:
    """The wire of a job that torchrun has started, or of a group of torch.distributed.

    It takes a Gloo group of its own, so the default group of torch.distributed stays the user's to make. One
    thread starts receives, and one more sends for each line in use: Gloo can only wait for a message, not say
    whether it has come.

    Args:
        ranks: who this process is.
        timeout: seconds that all ranks have to come.
        store: a torch.distributed.Store where they meet, for them alone; None: the one that torchrun's
            variables name.

    Raises:
        UnavailableError: torch is missing or has no Gloo, or cannot serve or reach the store.
        InvalidArgumentError: torchrun's variables are not there.
        CollectiveTimeoutError: some ranks did not come.
    """
    where = f"rank {ranks.rank} of {ranks.world}"
    left, begin = counting_down(timeout), time.monotonic()
    try:
        from torch import distributed
        from torch.distributed import ProcessGroupGloo  # noqa: F401  # not every torch has it
    except ImportError as error:
        raise UnavailableError(
            f"{where}: the ranks are on several nodes, which torch.distributed could connect, but it does not"
            f" load ({error}): install PyTorch, or start the ranks by mpirun"
        ) from error
    patience = datetime.timedelta(seconds=left())  # what loading torch has left of it
    try:
        with meeting(where, timeout, begin):
            if store is None:
                if not _launchers:
                    met = distributed.rendezvous("env://", ranks.rank, ranks.world, timeout=patience)
                    own, _, _ = within(left(), where, lambda: next(met))
                    _launchers.append(own_store(own, ranks.rank, ranks.world, left()))
                store = _launchers[0]
                store.set_timeout(patience)
                all_say("", store, ranks.rank, ranks.world, left(), "the launcher")
            group = gloo_group("gpucomm", store, ranks.rank, ranks.world, left())
            group.set_timeout(_FOREVER)
            server = _Server(group, where)
    except ValueError as error:  # a variable is missing
        raise InvalidArgumentError(
            f"{where} cannot meet the other ranks by torch.distributed: {error}"
        ) from error
    atexit.register(server.close)  # before Python ends, which threads that wait in Gloo would not survive
    return Fabric("c10d", server.wire, _CONTEXTS, keep=(server, store), close=server.close)


class _Server:
    """Carries the messages of a wire by a Gloo group."""

    def __init__(self, group: Any, where: str) -> None:
        self.wire = _core.ServedWire()
        self._group = group
        self._closed = False
        self._receives: dict[int, tuple[Any, Any]] = {}  # request -> (Gloo's handle, the array)
        self._frames: dict[int, list[Any]] = {}  # by bytes: those that were received into, to be again
        self._dump: Any = None  # where messages go that nobody wants
        self._under_way: dict[tuple[int, int], deque[Any]] = {}  # of each line; Gloo reads them
        self._threads = [
            threads.start(self._serve, name="gpucomm-c10d", purpose="receive on", where=f" ({where})")
        ]

    def close(self) -> None:
        """End the threads, once; what was still being received is left to Gloo."""
        atexit.unregister(self.close)
        if self._closed:
            return
        self._closed = True
        self.wire.close()
        if not self._join(2 * _FAREWELL.total_seconds()):
            # A thread that Gloo lets go of only when Python has ended would end the process by SIGABRT.
            self._end_waits()
            self._join(_FAREWELL.total_seconds())
        with contextlib.suppress(RuntimeError):  # they have a peer that is gone
            for _, work in (pair for under_way in self._under_way.values() for pair in under_way):
                work.wait(_FAREWELL)

    def _end_waits(self) -> None:
        """Close the connections: Gloo closes all when a wait times out, while abort() ends no wait."""
        import torch

        unused, peers = 4 * _CONTEXTS, set(range(self._group.size())) - {self._group.rank()}
        for peer in peers:  # where one has gone nothing is waited for, and nothing closed
            with contextlib.suppress(RuntimeError):
                work = self._group.recv([torch.empty(1, dtype=torch.uint8)], peer, unused)
                work.wait(datetime.timedelta(milliseconds=1))

    def _join(self, patience_s: float) -> bool:
        deadline = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self) -> None:
        while (event := self.wire.next_event()) is not None:
            try:
                self._handle(event)
            except Exception as error:  # nobody would wait for a thread that it ended
                self.wire.fail(event.line, said_by(error))

    def _handle(self, event: _core.WireEvent) -> None:
        import torch

        line, request = event.line, event.request
        if event.kind == "line":
            thread = threads.start(self._send, line, name="gpucomm-c10d", purpose="send on")
            self._threads = [*(other for other in self._threads if other.is_alive()), thread]
        elif event.kind == "receive":
            free = self._frames.setdefault(event.frame_bytes, [])
            frame = free.pop() if free else torch.empty(event.frame_bytes, dtype=torch.uint8)
            self.wire.prepare(frame)
            self._receives[request] = self._group.recv([frame], line.peer, line.stream), frame
            self.wire.started(request, frame)
        elif event.kind == "drop":
            if self._dump is None or len(self._dump) < event.frame_bytes:
                self._dump = torch.empty(event.frame_bytes, dtype=torch.uint8)
            dump = self._dump[: event.frame_bytes]
            self._receives[request] = self._group.recv([dump], line.peer, line.stream), dump
        else:
            work, frame = self._receives.pop(request)
            with contextlib.suppress(RuntimeError):  # it is here, whatever has happened to the line since
                work.wait(_FOREVER)
            self.wire.finish_receive(request)
            self._frames[len(frame)].append(frame)

    def _send(self, line: _core.Line) -> None:
        import torch

        key, group = (line.peer, line.stream), self._group
        under_way = self._under_way.setdefault(key, deque())
        try:
            while (frame := self.wire.next_send(line)) is not None:
                if len(under_way) == _MOST_UNDER_WAY:
                    under_way.popleft()[1].wait(_FOREVER)  # what Gloo still reads must stay
                if not frame.last:
                    data = torch.frombuffer(frame.data, dtype=torch.uint8)
                    under_way.append((frame, group.send([data], line.peer, line.stream)))
                    if not frame.matched:
                        continue
                for _, work in under_way if frame.last else [under_way[-1]]:
                    work.wait(_FOREVER)
                under_way.clear()
                if frame.last:
                    del self._under_way[key]
                    return
                self.wire.finish_send(frame.request)
        except Exception as error:
            self.wire.fail(line, said_by(error))
