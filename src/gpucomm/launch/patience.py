"""How long a rank waits until all have met, and what it looks at meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

__all__ = ["Patience", "counting_down"]

_LOOK_S = 0.02
_LEAST_S = 1.0


def counting_down(timeout: float, since: float | None = None) -> Callable[[], float]:
    """Counts the time of several steps down.

    Args:
        timeout: seconds for all of them.
        since: when the first began, by time.monotonic(); None: now.

    Returns:
        What tells the seconds that are left: at least one (or `timeout`), as the steps after the one that
        waits for who is late take less, but not none.
    """
    end, least = (time.monotonic() if since is None else since) + timeout, min(timeout, _LEAST_S)
    return lambda: max(least, end - time.monotonic())


class Patience:
    """A wait with a deadline.

    Args:
        timeout: seconds from now.
        look: called now and then; what it raises ends the wait, on the others that wait too.

    Attributes:
        ended: whether it has.
    """

    def __init__(self, timeout: float, look: Callable[[], None] | None = None) -> None:
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.ended = False
        self._look = look
        self._step = _LOOK_S if look else math.inf

    def look(self) -> None:
        """Look; raises what ends the wait."""
        if self._look:
            self.ended = True
            self._look()
            self.ended = False

    def left(self, end: float) -> float:
        """Seconds to sleep before the next look: at most until `end`."""
        return max(0.0, min(end - time.monotonic(), self._step))

    def attempts(self) -> Iterator[None]:
        """Yield at least once, then ever more slowly until the deadline."""
        pause = 0.0005
        while True:
            yield
            self.look()
            left = self.left(self.deadline)
            if left <= 0:
                return
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LOOK_S)
