"""CUDA streams of what training sends: messages run beside computing, which waits where it needs them.

gpucomm takes torch's current stream, where torch tells it, and a Work's wait() makes the stream wait that the
call was issued on. On the stream of backward that would hold up computing too. On the host all is nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from gpucomm.errors import UnavailableError

__all__ = ["Beside", "current", "follow", "used_here"]


def current(x: Any) -> Any:
    """Returns the current stream of a tensor's GPU; None on the host."""
    return torch.cuda.current_stream(x.device) if x.is_cuda else None


def follow(stream: Any) -> None:
    """Makes the current stream of a stream's GPU wait for all that the stream holds; None: nothing."""
    if stream is not None:
        torch.cuda.current_stream(stream.device).wait_stream(stream)


def used_here(x: Any) -> None:
    """Keeps a tensor's memory, once it is given back, until the current stream has done what it holds."""
    if x.is_cuda:
        x.record_stream(torch.cuda.current_stream(x.device))


class Beside:
    """A stream of its own on every GPU that is seen."""

    def __init__(self) -> None:
        self._own: dict[Any, Any] = {}
        self._writers: dict[Any, set[Any]] = {}

    def open(self, x: Any) -> None:
        """Makes the stream of a tensor's GPU, where it is on one.

        Raises:
            UnavailableError: this torch does not tell its current stream.
        """
        if x.is_cuda and x.device not in self._own:
            _require_known_streams()
            self._own[x.device] = torch.cuda.Stream(x.device)

    def note(self, x: Any) -> None:
        """Says that the current stream has work on a tensor that is sent next."""
        if x.is_cuda:
            self._writers.setdefault(x.device, set()).add(torch.cuda.current_stream(x.device))
            used_here(x)

    def behind(self, x: Any) -> AbstractContextManager[Any]:
        """Makes the own stream the current one, behind the current one and those noted.

        Args:
            x: a tensor of this GPU, which that stream uses from now on.

        Raises:
            UnavailableError: as open.
        """
        if not x.is_cuda:
            return contextlib.nullcontext()
        self.open(x)
        self.note(x)
        own = self._own[x.device]
        for writer in self._writers.pop(x.device):
            own.wait_stream(writer)
        x.record_stream(own)
        current: AbstractContextManager[Any] = torch.cuda.stream(own)
        return current

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Makes the own streams the current ones: what waits for messages here holds up nothing else."""
        with ExitStack() as streams:
            for own in list(self._own.values()):
                streams.enter_context(torch.cuda.stream(own))
            yield

    def join(self) -> None:
        """Makes the current streams wait for all that the own ones hold."""
        for own in list(self._own.values()):
            follow(own)

    def idle(self) -> bool:
        """Whether the own streams have done all they hold; asked without waiting."""
        return all(own.query() for own in list(self._own.values()))


def _require_known_streams() -> None:
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        raise UnavailableError(
            "[optim] training on CUDA tensors needs a torch that tells its current stream (2.10 or later), "
            f"this is {torch.__version__}"
        )
