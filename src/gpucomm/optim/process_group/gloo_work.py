"""The handle of what the Gloo group inside a process group does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from gpucomm.comm import Communicator

__all__ = ["GlooWork"]


class GlooWork(dist.Work):  # type: ignore[misc]
    """Gloo's own, but where it has failed the whole group is closed, as after every fault."""

    def __init__(self, work: Any, what: str, comm: Communicator) -> None:
        """Takes it over.

        Args:
            work: Gloo's handle.
            what: was called, for the text.
            comm: the group's.
        """
        super().__init__()
        self._work, self._what, self._comm = work, what, comm

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the end.

        Args:
            timeout: 0: the group's.

        Returns:
            True.

        Raises:
            RuntimeError: Gloo's, with what was called, and by whom; the group is closed on every rank.
        """
        try:
            return bool(self._work.wait(timeout) if timeout else self._work.wait())
        except RuntimeError as error:
            self._comm.abort()
            raise type(error)(
                f"{self._what} by the Gloo group inside failed on rank {self._comm.rank} of"
                f" {self._comm.world}, and the process group is closed: {error}"
            ) from error

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return bool(self._work.is_success())

    def exception(self) -> Any:
        """Its error, if it has ended with one."""
        return self._work.exception()

    def result(self) -> Any:
        """The tensors of the call, where Gloo gives them."""
        return self._work.result()

    def get_future(self) -> Any:
        """Gloo's future, whose errors close nothing."""
        return self._work.get_future()

    def _source_rank(self) -> int:
        return int(self._work._source_rank())
