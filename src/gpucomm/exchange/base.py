"""What an exchange is: the way in which one bucket of local gradients becomes a global one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gpucomm import _core
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

    @property
    def span(self) -> slice:
        """The same as an index of the bucket."""
        return slice(self.offset, self.offset + self.length)


class Handle(Protocol):
    """An exchange under way; a gpucomm Work is one."""

    def wait(self, timeout: float | None = None) -> Any:
        """Returns once the buffer holds the global values; raises the fault of the collective."""

    def done(self) -> bool:
        """Tells, without waiting, whether the exchange has ended."""


class Exchange(ABC):
    """Makes the mean over the ranks out of every rank's bucket."""

    name: str

    @abstractmethod
    def start(self, buffer: Any, parts: Sequence[Part]) -> Handle:
        """Starts to replace a buffer by its mean over the ranks, in place.

        All ranks start the same buckets in the same order. The buffer must stay alive and untouched until the
        handle has been waited for.

        Args:
            buffer: array of a floating dtype, shape (n,), contiguous. Behind the last part lies one mark per
                part (1: the parameter had a gradient, 0: it had none) whose mean must tell 0 from not 0; or
                nothing.
            parts: the parameters in the buffer, by offset, without gaps. State is kept by their names, never
                by bucket, so that it outlives another merging.

        Returns:
            A handle to wait for.
        """

    def require(self, dtype: Any, name: str) -> None:  # noqa: B027  most take all
        """Checks, before there are gradients, that those of a dtype are exchanged.

        Args:
            dtype: torch's.
            name: of a parameter that has it, for the text.

        Raises:
            UnsupportedTypeError: they are not.
        """

    def end_round(self, *, used: bool = True) -> None:  # noqa: B027  most keep nothing
        """Ends a step, all of whose buckets have been waited for; on all ranks alike.

        What an exchange keeps of a step it takes over here, for all buckets or for none: where one has
        overflowed, a GradScaler skips the step. For parameters that an optimizer steps all the same, as it
        trains none of those, it does so in :meth:`stepped`.

        Args:
            used: whether the results are; False where the step was given up.
        """

    @property
    def follows_steps(self) -> bool:
        """Whether it wants to hear by :meth:`stepped` what becomes of rounds that have ended."""
        return False

    def stepped(self, names: Collection[str]) -> None:  # noqa: B027
        """Hears that an optimizer has stepped on the results of the rounds since its last step.

        Args:
            names: of parameters that it trains.
        """

    def discard(self, names: Collection[str]) -> None:  # noqa: B027
        """Hears, if it follows steps, that results nobody has stepped on are thrown away; on each rank alone.

        Args:
            names: of parameters whose gradients are cleared.
        """

    def understands(self, name: str) -> bool:
        """Tells whether the state of the exchange of this name means the same to this one."""
        return name == self.name

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
    """Makes an exchange known by its name; used as a decorator.

    Raises:
        InvalidArgumentError: it is no subclass of Exchange with a name.
    """
    known = isinstance(exchange, type) and issubclass(exchange, Exchange)
    if not known or not isinstance(getattr(exchange, "name", None), str):
        raise InvalidArgumentError(
            f"[exchange] an exchange must be a subclass of Exchange with a name, got {exchange!r}"
        )
    _exchanges[exchange.name] = exchange
    return exchange


def names() -> list[str]:
    """Returns the names of all exchanges but the codecs, whose specs are names of exchanges too."""
    return sorted(_exchanges)


def create(
    name: str, comm: Communicator, *, algorithm: str = "auto", segments: int | None = None
) -> Exchange:
    """Makes the exchange of a name.

    Args:
        name: one of :func:`names`, or the spec of a codec (`gpucomm.codecs.names()`) such as "int8".
        comm: the ranks among which gradients are exchanged.
        algorithm: which collective algorithm carries it.
        segments: into how many pieces it cuts a message; None lets it choose.

    Returns:
        The exchange.

    Raises:
        InvalidArgumentError: the name is not known, and the text lists those that are; or the codec's
            argument is wrong.
    """
    if isinstance(name, str) and name in _exchanges:
        return _exchanges[name](comm, algorithm=algorithm, segments=segments)
    if isinstance(name, str) and name.partition(":")[0] in _core.codecs():
        from gpucomm.exchange.coded import Coded

        return Coded(comm, name, algorithm=algorithm, segments=segments)
    raise InvalidArgumentError(
        f"[exchange] exchange must be one of {', '.join(names())}, or a codec ({', '.join(_core.codecs())}), "
        f"got {name!r}"
    )
