"""In which order a group's calls are issued, which must be the same on all ranks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Order"]


class Order:
    """Numbers the calls of a group.

    A future's callback runs when its call has ended, on a thread of its own. A call that it issues comes
    before or after those that other threads issue meanwhile, on each rank as it happens: where it would come
    after them, it is to be refused.

    Attributes:
        lock: held from why_not() until the call is issued.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._last = 0
        self._callback = threading.local()

    def why_not(self) -> str:
        """Why this thread may not issue a call now; empty: it may."""
        behind = getattr(self._callback, "behind", None)
        if behind is None or behind == self._last:
            return ""
        return (
            f"it is issued by a callback of the future of call #{behind} of this group, when call"
            f" #{self._last} was issued already: on another rank the callback may be the first. Issue all"
            " calls before, or nothing else until it has run"
        )

    def take(self) -> int:
        """The number of a call that this thread issues now."""
        self._last += 1
        if getattr(self._callback, "behind", None) is not None:
            self._callback.behind = self._last
        return self._last

    @contextmanager
    def callbacks(self, number: int) -> Iterator[None]:
        """Within, this thread runs the callbacks of a call's future."""
        self._callback.behind = number
        try:
            yield
        finally:
            self._callback.behind = None
