"""What an exchange is: the way in which one bucket of local gradients becomes a global one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from gpucomm.errors import InvalidArgumentError

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["Exchange", "Handle", "Part", "create", "names", "register"]

_exchanges: dict[str, Callable[..., Exchange]] = {}


class Part(NamedTuple):
    """Where one parameter's gradient lies in a bucket, in elements."""

    name: str
    offset: int
    length: int


class Handle(Protocol):
    """An exchange under way; a gpucomm Work is one."""

    def wait(self, timeout: float | None = None) -> Any:
        """Returns once the buffer holds the global values; raises the fault of the collective."""

    def done(self) -> bool:
        """Tells, without waiting, whether the exchange has ended."""


class Exchange(ABC):
    """Makes the mean over the ranks out of every rank's bucket."""

    name: ClassVar[str]

    @abstractmethod
    def start(self, buffer: Any, parts: Sequence[Part]) -> Handle:
        """Starts to replace a buffer by its mean over the ranks, in place.

        All ranks start the same buckets in the same order. The buffer must stay alive and untouched until the
        handle has been waited for.

        Args:
            buffer: array of a floating dtype, shape (n,), contiguous. Behind the last part lie marks (which
                parameters had a gradient): few, small whole numbers, whose mean must tell 0 from not 0.
            parts: the parameters in the buffer, by offset. State is kept by their names, never by bucket, so
                that it outlives another merging.

        Returns:
            A handle to wait for.
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns what must be saved for training to go on as if not interrupted; empty for most."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` returned.

        Raises:
            InvalidArgumentError: there is state, and this exchange keeps none.
        """
        if state:
            raise InvalidArgumentError(
                f"[exchange {self.name}] keeps no state, but was given {', '.join(sorted(state))} to load"
            )


def register(exchange: type[Exchange]) -> type[Exchange]:
    """Makes an exchange known by its name; used as a decorator."""
    _exchanges[exchange.name] = exchange
    return exchange


def names() -> list[str]:
    """Returns the names of all exchanges."""
    return sorted(_exchanges)


def create(
    name: str, comm: Communicator, *, algorithm: str = "auto", segments: int | None = None
) -> Exchange:
    """Makes the exchange of a name.

    Args:
        name: one of :func:`names`.
        comm: the ranks among which gradients are exchanged.
        algorithm: which collective algorithm carries it.
        segments: into how many pieces it cuts a message; None lets it choose.

    Returns:
        The exchange.

    Raises:
        InvalidArgumentError: the name is not known; the text lists those that are.
    """
    maker = _exchanges.get(name) if isinstance(name, str) else None
    if maker is None:
        raise InvalidArgumentError(f"[exchange] exchange must be one of {', '.join(names())}, got {name!r}")
    return maker(comm, algorithm=algorithm, segments=segments)
