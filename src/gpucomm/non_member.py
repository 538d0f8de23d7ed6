"""What a rank has of a group that it is not in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NoReturn

from gpucomm.errors import InvalidArgumentError

__all__ = ["NonMember"]


class NonMember:
    """Stands on a rank for a group that it is not in: false, and all use of it raises.

    Only `with`, which does nothing, and `close()` are allowed, so that all ranks can run the same lines.
    """

    def __init__(self, rank: int, world: int, members: Sequence[int]) -> None:
        """Say why.

        Args:
            rank: that is not in it.
            world: of the communicator that was divided.
            members: the ranks of the group; none: the rank has joined no group.
        """
        others = f"the group of ranks {', '.join(map(str, members))}" if members else "any group (color None)"
        self._why = f"rank {rank} of {world} is not in {others}"

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return f"<NonMember: {self._why}>"

    def __enter__(self) -> NonMember:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def close(self) -> None:
        """Nothing is open."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # what copy, pickle and the like look for
            raise AttributeError(name)
        raise InvalidArgumentError(f"{self._why}, and so has no {name} of it: `if group:` tells who has")
