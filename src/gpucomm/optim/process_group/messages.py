"""The messages of a process group: of GPUs by the communicator, of host memory by the Gloo group inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpucomm.errors import InvalidArgumentError, UnsupportedTypeError
from gpucomm.optim.process_group.gloo_work import GlooWork
from gpucomm.optim.process_group.packing import Copies, source, target
from gpucomm.optim.process_group.rooted import Rooted

__all__ = ["Messages"]


class Messages(Rooted):
    """Every method takes a list of one tensor, and returns a Work at once.

    Gloo matches tags and takes a message from any rank, for which the communicator has no counterpart; but it
    takes host memory only.
    """

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        """Sends to one rank of the group."""
        self._require_rank("dst", to)
        if self._by_communicator("send", tensors, tag):
            return self._message(self._comm.send, source(tensors[0]), to, tensors, [])
        return GlooWork(self._gloo.send(tensors, to, tag), "send", self._comm)

    def recv(self, tensors: Any, origin: int, tag: int = 0) -> Any:
        """Receives from one rank of the group."""
        self._require_rank("src", origin)
        if self._by_communicator("recv", tensors, tag):
            copies: Copies = []
            return self._message(self._comm.recv, target(tensors[0], copies), origin, tensors, copies)
        return GlooWork(self._gloo.recv(tensors, origin, tag), "recv", self._comm)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receives from the first rank that sends."""
        if self._by_communicator("recv from any rank", tensors, 0):
            raise UnsupportedTypeError(
                f"recv from any rank goes by Gloo, which takes host memory only, got a tensor on"
                f" {tensors[0].device} (rank {self._comm.rank} of {self._comm.world})"
            )
        return GlooWork(self._gloo.recv_anysource(tensors, tag), "recv from any rank", self._comm)

    def _require_rank(self, name: str, other: int) -> None:
        """Refuses a rank that the group does not have, for which Gloo ends the process."""
        world = self._comm.world
        if not 0 <= other < world:
            raise InvalidArgumentError(
                f"{name} must be a rank in [0, {world}), got {other} (rank {self._comm.rank} of {world})"
            )

    def _message(self, call: Callable[..., Any], x: Any, other: int, tensors: Any, copies: Copies) -> Any:
        return self._issue(call, [((x, other), {})], None, tensors, copies)

    def _by_communicator(self, what: str, tensors: Any, tag: int) -> bool:
        if not tensors[0].is_cuda:
            self._check_gloo(what)
            return False
        if tag:
            raise UnsupportedTypeError(
                f"{what} of tensors on a GPU has no tags, got tag {tag} (rank {self._comm.rank} of"
                f" {self._comm.world}): two ranks' messages are received in the order in which they were sent"
            )
        return True
