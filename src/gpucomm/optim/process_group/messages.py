"""The messages of a process group, which go by the Gloo group inside.

By super(), which pybind11 lets through from the method of the same name only.
"""

from __future__ import annotations

from typing import Any

from gpucomm.errors import UnsupportedTypeError
from gpucomm.optim.process_group.gloo_work import GlooWork
from gpucomm.optim.process_group.rooted import Rooted

__all__ = ["Messages"]


class Messages(Rooted):
    """Every method takes a list of one tensor in host memory, and returns a Work at once.

    Gloo matches tags and takes a message from any rank, for which the communicator has no counterpart.
    """

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        """Sends to one rank of the group."""
        self._require_open("send")
        self._require_host("send", tensors)
        return GlooWork(super().send(tensors, to, tag), "send", self._comm)

    def recv(self, tensors: Any, origin: int, tag: int = 0) -> Any:
        """Receives from one rank of the group."""
        self._require_open("recv")
        self._require_host("recv", tensors)
        return GlooWork(super().recv(tensors, origin, tag), "recv", self._comm)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receives from the first rank that sends."""
        self._require_open("recv from any rank")
        self._require_host("recv", tensors)
        return GlooWork(super().recv_anysource(tensors, tag), "recv from any rank", self._comm)

    def _require_host(self, what: str, tensors: Any) -> None:
        # Gloo would take the device's address for the host's.
        if any(x.is_cuda for x in tensors):
            raise UnsupportedTypeError(
                f"{what} goes by Gloo, which takes host memory only, got a tensor on {tensors[0].device}:"
                f" use communicator.{what} of the group (rank {self._comm.rank} of {self._comm.world})"
            )
