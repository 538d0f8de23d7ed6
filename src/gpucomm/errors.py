"""Every exception of gpucomm; each also derives from the built-in that a Python user expects."""

from __future__ import annotations

__all__ = [
    "ClosedError",
    "CollectiveTimeoutError",
    "Error",
    "InvalidArgumentError",
    "MismatchError",
    "PeerLostError",
    "RankFailedError",
    "UnavailableError",
    "UnsupportedTypeError",
]


class Error(Exception):
    """The base of all."""


class InvalidArgumentError(Error, ValueError):
    """An argument breaks a rule; the text says which, the value and the rank."""


class UnsupportedTypeError(Error, TypeError):
    """Not an array, or an array of a dtype, device or layout that the collective does not take."""


class MismatchError(Error, RuntimeError):
    """The ranks did not make the same call; the text names both calls."""


class CollectiveTimeoutError(Error, TimeoutError):
    """A deadline passed; the text names the ranks that came and those that are missing."""


class PeerLostError(Error, ConnectionError):
    """A rank of the communicator is gone; the text names it."""


class ClosedError(Error, RuntimeError):
    """The communicator was closed, by its user or by an earlier fault, which the text repeats."""


class UnavailableError(Error, RuntimeError):
    """Something is not there on this machine or in this build; the text says what to do."""


class RankFailedError(Error, RuntimeError):
    """A function raised on a rank of a local world, or the rank's process ended; carries its traceback.

    Attributes:
        rank: of whom; -1: it is not known.
    """

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank
