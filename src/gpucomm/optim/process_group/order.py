"""In which order a group's calls are issued, which must be the same on all ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Order"]


class Order:
    """Numbers the calls of a group.

    A future's callback runs when its call has ended, on a thread of its own. A call that it issues comes
    before or after those that other threads issue meanwhile, on each rank as it happens: where it would come
    after them, it is refused.

    Args:
        alone: a group of one rank, which has no other order.
    """

    def __init__(self, alone: bool = False) -> None:
        self._alone = alone
        self._lock = threading.Lock()  # held while a call is issued
        self._last = 0
        self._callback = threading.local()

    @contextmanager
    def issuing(self, refused: Callable[[str], Exception]) -> Iterator[int]:
        """A call is issued within.

        Args:
            refused: makes the error of a text.

        Yields:
            Its number.
        """
        with self._lock:
            behind = getattr(self._callback, "behind", None)
            if behind not in (None, self._last) and not self._alone:
                raise refused(
                    f"it is issued by a callback of the future of call #{behind} of this group, when call"
                    f" #{self._last} was issued already: on another rank the callback may be the first. Issue"
                    " all calls before, or nothing else until it has run"
                )
            self._last += 1
            if behind is not None:
                self._callback.behind = self._last
            yield self._last

    @contextmanager
    def callbacks(self, number: int) -> Iterator[None]:
        """Within, this thread runs the callbacks of a call's future."""
        self._callback.behind = number
        try:
            yield
        finally:
            self._callback.behind = None
