"""Output of several processes, line by line, each line with its rank in front."""

from __future__ import annotations

import os
import sys
from typing import IO

__all__ = ["Lines", "Output"]

_LONGEST = 64 * 1024  # bytes kept of a line that does not end


class Lines:
    """Cuts a stream of bytes into lines with a prefix."""

    def __init__(self, rank: int) -> None:
        self._prefix = f"[{rank}] "
        self._rest = b""

    def feed(self, data: bytes) -> str:
        """The whole lines that are there with `data`."""
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if len(self._rest) > _LONGEST:
            whole, newline, self._rest = whole + newline + self._rest, b"\n", b""
        return self._tag(whole) if newline else ""

    def end(self) -> str:
        """What is left, as a line."""
        rest, self._rest = self._rest, b""
        return self._tag(rest) if rest else ""

    def _tag(self, lines: bytes) -> str:
        text = lines.decode(errors="replace")
        return "".join(f"{self._prefix}{line}\n" for line in text.split("\n"))


class Output:
    """One pipe of a rank, printed to `sys.stdout` or `sys.stderr` as they are when it is read."""

    def __init__(self, rank: int, pipe: IO[bytes], sink: str) -> None:
        os.set_blocking(pipe.fileno(), False)
        self.pipe = pipe
        self._sink = sink
        self._lines = Lines(rank)

    def forward(self) -> bool:
        """Print what the pipe holds; False at its end."""
        try:
            data = os.read(self.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        self._print(self._lines.feed(data) if data else self._lines.end())
        return bool(data)

    def finish(self) -> None:
        """Print what the pipe holds now, also an unfinished line, without waiting for its end.

        A process that a rank left behind may hold the pipe open for ever.
        """
        self.forward()
        self._print(self._lines.end())

    def _print(self, text: str) -> None:
        sink = getattr(sys, self._sink)
        if not text or sink is None or getattr(sink, "closed", False):  # nobody listens
            return
        try:
            sink.write(text)
        except UnicodeEncodeError:  # ranks may print what only they can
            sink.write(text.encode("ascii", "backslashreplace").decode())
        sink.flush()
