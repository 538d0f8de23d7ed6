"""What a merge policy is, and how a specification such as ``"25MB"`` finds its policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from gpucomm.errors import InvalidArgumentError

__all__ = ["MergePolicy", "forms", "parse", "plan", "register"]

_policies: list[type[MergePolicy]] = []


class MergePolicy(ABC):
    """Decides which gradients travel in one message."""

    form: ClassVar[str]
    """How users write it, as it stands in error texts and documentation."""

    @classmethod
    @abstractmethod
    def parse(cls, spec: str) -> MergePolicy | None:
        """Returns the policy that `spec` names, or None when it is not of this form."""

    @abstractmethod
    def plan(self, sizes_bytes: Sequence[int]) -> list[list[int]]:
        """Groups tensors; see :func:`plan`."""


def register(policy: type[MergePolicy]) -> type[MergePolicy]:
    """Makes a policy known; used as a decorator.

    Raises:
        InvalidArgumentError: it is no subclass of MergePolicy.
    """
    if not isinstance(policy, type) or not issubclass(policy, MergePolicy):
        raise InvalidArgumentError(f"[merge] a policy must be a subclass of MergePolicy, got {policy!r}")
    _policies.append(policy)
    return policy


def forms() -> list[str]:
    """Returns how every known policy is written."""
    return [policy.form for policy in _policies]


def parse(spec: str) -> MergePolicy:
    """Finds the policy that a specification names.

    Args:
        spec: one of the known forms, such as ``"per_tensor"``, ``"one"`` or ``"25MB"``.

    Returns:
        The policy.

    Raises:
        InvalidArgumentError: no policy has this form; the text lists the known ones.
    """
    if isinstance(spec, str):
        for policy in _policies:
            found = policy.parse(spec.strip())
            if found is not None:
                return found
    raise InvalidArgumentError(f"[merge] merge must be {' or '.join(forms())}, got {spec!r}")


def plan(spec: str, sizes_bytes: Sequence[int]) -> list[list[int]]:
    """Groups tensors that travel together.

    Args:
        spec: the policy, as :func:`parse` takes it.
        sizes_bytes: size of every gradient in bytes, in the order in which backward makes them.

    Returns:
        Groups of consecutive indices into `sizes_bytes`, in order; every index is in exactly one group.

    Raises:
        InvalidArgumentError: the specification is not known, or a size is negative.

    >>> plan("1KB", [600, 600, 100])
    [[0, 1], [2]]
    """
    policy = parse(spec)
    for index, size in enumerate(sizes_bytes):
        if size < 0:
            raise InvalidArgumentError(f"[merge] a size must be 0 bytes or more, got {size} at index {index}")
    return policy.plan(sizes_bytes)
