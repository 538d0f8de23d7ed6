"""How a process group's collectives travel: algorithm, segments and codec of each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Backend

from gpucomm import _core
from gpucomm.comm import is_whole
from gpucomm.cost import MOST_SEGMENTS
from gpucomm.errors import InvalidArgumentError

__all__ = ["Options"]

_CODED = {"algorithm", "segments", "codec"}
_PLAIN = {"algorithm", "segments"}
_KEYS = {
    "all_reduce": _CODED,
    "all_gather": _CODED,
    "reduce_scatter": _CODED,
    "broadcast": _PLAIN,
    "all_to_all": _PLAIN,
}

Choice = Mapping[str, Any]


class Options(Backend.Options):
    """The options of a process group, for `pg_options`; the same on all its ranks.

    Each choice is a dict of the keywords with which the communicator's collective is called: "algorithm",
    "segments" and, of the first three, "codec". What a codec cannot carry (integers, a dtype that it does not
    take, other reductions than sums) travels as it is, by algorithm "auto": torch itself sends integers
    through the same group.

    A group takes no options from another: `new_group` and `init_device_mesh` have arguments of their own.
    """

    def __init__(
        self,
        *,
        all_reduce: Choice | None = None,
        all_gather: Choice | None = None,
        reduce_scatter: Choice | None = None,
        broadcast: Choice | None = None,
        all_to_all: Choice | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        """Checks the choices.

        Args:
            all_reduce: of all_reduce and the all-reduces of DDP.
            all_gather: of all_gather in all its forms; FSDP gathers parameters by it.
            reduce_scatter: of reduce_scatter in all its forms; FSDP reduces gradients by it.
            broadcast: of broadcast.
            all_to_all: of all_to_all and all_to_all_single.
            timeout: of the groups that a DeviceMesh makes with these options; elsewhere torch takes that of
                its own calls.

        Raises:
            InvalidArgumentError: a keyword, an algorithm or a codec is unknown, or the timeout no timedelta.
        """
        if not isinstance(timeout, timedelta | None):
            raise InvalidArgumentError(
                f"timeout must be a datetime.timedelta, as torch's own, or None, got {timeout!r}"
            )
        super().__init__("gpucomm", *([timeout] if timeout else []))
        given = {
            "all_reduce": all_reduce,
            "all_gather": all_gather,
            "reduce_scatter": reduce_scatter,
            "broadcast": broadcast,
            "all_to_all": all_to_all,
        }
        for name, choice in given.items():
            if not isinstance(choice, Mapping | None):
                raise InvalidArgumentError(
                    f"{name} must be a dict such as {{'codec': 'int8'}}, got {choice!r}"
                )
        self.choices = {name: dict(choice or {}) for name, choice in given.items()}
        for name, choice in self.choices.items():
            _check(name, choice)

    @property
    def text(self) -> str:
        """What they choose, the same for the same options."""
        given = {name: dict(sorted(choice.items())) for name, choice in self.choices.items() if choice}
        return ", ".join(f"{name}={choice!r}" for name, choice in given.items()) or "none"


def _check(collective: str, choice: Choice) -> None:
    if unknown := sorted(set(choice) - _KEYS[collective]):
        taken = ", ".join(sorted(_KEYS[collective]))
        raise InvalidArgumentError(f"{collective} has no option {unknown[0]!r}, it takes {taken}")
    codec, segments = choice.get("codec"), choice.get("segments")
    if not isinstance(codec, str | None):
        raise InvalidArgumentError(f"{collective}: a codec must be a spec such as 'int8', got {codec!r}")
    if segments not in (None, "auto") and not (is_whole(segments) and 1 <= segments <= MOST_SEGMENTS):
        raise InvalidArgumentError(
            f"{collective}: segments must be from 1 to {MOST_SEGMENTS}, 'auto' or None, got {segments!r}"
        )
    if codec is not None:
        _core.Codec(codec)
    known = [
        name
        for name, about in _core.algorithms().items()
        if collective in about["collectives"] and about["coded"] == (codec is not None)
    ]
    algorithm = choice.get("algorithm", "auto")
    if algorithm != "auto" and algorithm not in known:
        how = f"with codec {codec!r}" if codec is not None else "without a codec"
        raise InvalidArgumentError(
            f"{collective} {how} has no algorithm {algorithm!r}, it has auto, {', '.join(sorted(known))}"
        )
