"""One worker process of a local world, seen from the world."""

from __future__ import annotations

import functools
import os
import pickle
import selectors
import socket
import subprocess
from collections.abc import Mapping
from typing import Any

from gpucomm.launch.channel import Channel
from gpucomm.launch.fresh import fresh_python
from gpucomm.launch.lasting import popen
from gpucomm.launch.lines import Output

__all__ = ["Member"]


class Member:
    """A worker: its process, the channel to it, its output and its answer to the call in progress.

    Everything that can happen to it is registered with the world's selector; the data of an event is a
    function of the event mask that deals with it.

    Attributes:
        rank: of the worker.
        answer: (kind, content) once it has answered, else None.
        ended: whether its process was seen to end.
    """

    def __init__(
        self,
        rank: int,
        memory: int,
        env: Mapping[str, str],
        settings: Mapping[str, Any],
        selector: selectors.BaseSelector,
    ) -> None:
        self.rank = rank
        self.answer: tuple[str, Any] | None = None
        self.ended = False
        self._selector = selector
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = _start(theirs.fileno(), memory, env)
            except BaseException:  # descriptors may be what is short
                ours.close()
                raise
        self._channel = Channel(ours)
        self._outputs: list[Output] = []
        for pipe, sink in ((self.process.stdout, "stdout"), (self.process.stderr, "stderr")):
            assert pipe is not None
            self._outputs.append(Output(rank, pipe, sink))
        self._death = _watch_death(self.process.pid)
        self._register()
        self.ask(pickle.dumps({**settings, "rank": rank}))

    def ask(self, message: bytes) -> None:
        """Queue a message and expect an answer."""
        self.answer = None
        self._channel.queue(message)
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.modify(self._channel.connection, both, self._talk)

    def take_result(self) -> Any:
        """The result that it answered, which is not kept here."""
        assert self.answer is not None
        content, self.answer = self.answer[1], ("taken", None)
        return pickle.loads(content)

    def finish_output(self) -> None:
        """Print what the worker has written by now."""
        for output in self._outputs:
            output.finish()

    def hang_up(self) -> None:
        """Tell the worker to end; it also would if this process were gone."""
        self._channel.connection.close()

    def release(self) -> None:
        """Close what is still open; the selector must be closed by now."""
        self.hang_up()
        for output in self._outputs:
            output.pipe.close()
        if self._death >= 0:
            os.close(self._death)

    def _register(self) -> None:
        self._selector.register(self._channel.connection, selectors.EVENT_READ, self._talk)
        for output in self._outputs:
            self._selector.register(output.pipe, selectors.EVENT_READ, functools.partial(self._print, output))
        if self._death >= 0:
            self._selector.register(self._death, selectors.EVENT_READ, self._die)

    def _talk(self, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE and self._channel.flush():
                self._selector.modify(self._channel.connection, selectors.EVENT_READ, self._talk)
            if events & selectors.EVENT_READ:
                for message in self._channel.receive():
                    self.answer = pickle.loads(message)
        except (EOFError, ConnectionError):
            self.ended = True
            self._selector.unregister(self._channel.connection)

    def _print(self, output: Output, events: int) -> None:
        if not output.forward():
            self._selector.unregister(output.pipe)

    def _die(self, events: int) -> None:
        self.ended = True
        self._selector.unregister(self._death)


def _watch_death(pid: int) -> int:
    """A descriptor that becomes readable when the process ends, or -1 on kernels without (before 5.3).

    The end of the channel alone may come late: a helper process that the worker forked keeps it open.
    """
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def _start(control: int, memory: int, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return popen(
        fresh_python("from gpucomm.launch.worker import main; main()", str(control), str(memory)),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[control] if memory < 0 else [control, memory],
        start_new_session=True,  # a Ctrl-C is ours to handle
    )
