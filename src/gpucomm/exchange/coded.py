"""Coded: gradients travel through a codec, and what its encodings lose is sent with the next gradients.

Source: error feedback of Seide et al. 2014 and Karimireddy et al. 2019 (arXiv:1901.09847), here with the
errors of every hop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpucomm import _core
from gpucomm.errors import ClosedError, UnsupportedTypeError
from gpucomm.exchange.base import Exchange, Handle, Part
from gpucomm.exchange.gradient_codec import LARGEST, GradientCodec, magnitude
from gpucomm.exchange.residuals import Flat, Residuals

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["Coded"]


class Coded(Exchange):
    """An all-reduce per bucket with a codec; any codec's spec is the name of such an exchange.

    With a lossy codec every rank holds a residual per parameter, float32 whatever the gradient's dtype: what
    its encodings have lost. It is added to the next gradient, so the sum of many steps is exact up to what is
    held. 16-bit gradients travel as float32, which the codec would make of them.

    A codec that refuses NaN and Inf gets neither: an overflowed parameter's gradient becomes NaN on all
    ranks, so that a GradScaler skips the step. So all residuals stay as they are if any result of the round
    is not finite, until an optimizer steps all the same. Those of parameters that no rank has used, or whose
    own result is not finite, stay anyhow.

    Marks and the word of overflows travel beside the bucket, in a small all-reduce without a codec.

    Args:
        comm: the ranks.
        spec: the codec's, such as "int8".
        algorithm: passed to the `all_reduce` of gradients.
        segments: passed to it.

    Raises:
        InvalidArgumentError: a bad spec, or an algorithm without codecs or one that cannot tell errors.
    """

    def __init__(
        self, comm: Communicator, spec: str, *, algorithm: str = "auto", segments: int | None = None
    ) -> None:
        self._coding = GradientCodec(spec)
        self.name = self._coding.spec
        self._comm = comm
        self._how: dict[str, Any] = {"algorithm": algorithm, "segments": segments, "codec": spec}
        self._limit = self._coding.largest(comm.world)
        self._rank = f"rank {comm.rank} of {comm.world}"
        self._settled: list[_Settled] = []  # in this round
        self._undecided: list[_Settled] = []  # of the round before, whose results were not all finite
        self._residuals = Residuals(f"exchange {self.name}, {self._rank}", comm.rank, comm.world)
        # As in Dense: a bad algorithm is told now, also one that cannot tell what it loses.
        feeding: dict[str, Any] = {"error": np.zeros(1, np.float32)} if self._coding.lossy else {}
        comm.all_reduce(np.zeros(1, np.float32), op="mean", **feeding, **self._how)

    def require(self, dtype: Any, name: str) -> None:
        """Checks that the codec takes gradients of a dtype; see :meth:`Exchange.require`."""
        if not self._coding.takes(dtype):
            raise UnsupportedTypeError(
                f"[exchange {self.name}] the codec does not take gradients of {dtype}, as that of "
                f"parameter {name!r} ({self._rank})"
            )

    def start(self, buffer: Any, parts: Sequence[Part]) -> Handle:
        """Issues the all-reduces; see :meth:`Exchange.start`.

        Raises:
            UnsupportedTypeError: the codec does not take the buffer's dtype.
        """
        end = parts[-1].span.stop
        self.require(buffer.dtype, parts[0].name)
        if self._coding.lossy:
            return self._start_lossy(buffer[:end], buffer[end:], parts)
        works = [self._sent(buffer[:end], **self._how)]
        if len(buffer) > end:
            works.append(self._sent_after(works[0], buffer[end:]))
        return _Works(works)

    def _start_lossy(self, gradients: Any, marks: Any, parts: Sequence[Part]) -> Handle:
        self._undecided = []
        flat = self._residuals.of(parts, gradients.device)
        message = flat.held.new_zeros(len(marks) + (len(parts) if self._coding.refuses else 0))
        message[: len(marks)] = marks
        overflows = message[len(marks) :]
        if self._coding.refuses and not _within(gradients, self._limit):
            self._take_out(gradients, parts, overflows)
        total = flat.added_to(gradients)
        works = [self._sent(total, error=flat.begin(), **self._how)]
        if len(message):
            works.append(self._sent_after(works[0], message))

        def settle() -> None:
            marks.copy_(message[: len(marks)])
            broken = self._placed(gradients, total, parts, overflows)
            self._settled.append(_Settled(flat, _places(message[: len(marks)] == 0), broken))

        return _Works(works, settle)

    def end_round(self, *, used: bool = True) -> None:
        """Keeps what this round's encodings have lost, or what was held before; see the base class."""
        settled, self._settled, self._undecided = self._settled, [], []
        if not used:
            return
        if any(one.broken for one in settled):
            self._undecided = settled
            return
        for one in settled:
            one.flat.accept(one.unsent)

    @property
    def follows_steps(self) -> bool:
        """Whether residuals depend on what becomes of gradients; see :attr:`Exchange.follows_steps`."""
        return self._coding.lossy

    def stepped(self, names: Collection[str]) -> None:
        """Keeps what has been lost of these; see :meth:`Exchange.stepped`."""
        for flat, unsent, broken in self._undecided:
            stay = {*unsent, *broken}
            flat.accept_some([i for i, part in enumerate(flat.parts) if part.name in names and i not in stay])
        for flat in self._residuals.flats:
            flat.used(names)

    def discard(self, names: Collection[str]) -> None:
        """Holds what was held before rounds whose results nobody has used; see :meth:`Exchange.discard`."""
        for flat in self._residuals.flats:
            flat.discard(names)

    def _sent(self, x: Any, **how: Any) -> Handle:
        work: Handle = self._comm.all_reduce(x, op="mean", async_op=True, **how)
        return work

    def _sent_after(self, before: Handle, x: Any) -> Handle:
        try:
            return self._sent(x)
        except ClosedError:
            before.wait()  # a fault has come between the two: which one, this one knows
            raise

    def _take_out(self, gradients: Any, parts: Sequence[Part], overflows: Any) -> None:
        for place, part in enumerate(parts):
            gradient = gradients[part.span]
            if not _within(gradient, self._limit):
                gradient.zero_()
                overflows[place] = 1

    def _placed(self, gradients: Any, total: Any, parts: Sequence[Part], overflows: Any) -> list[int]:
        """Puts the result in place, and tells of which parts it is not finite: the same on all ranks."""
        if total is not gradients:
            gradients.copy_(total)
        broken = _places(overflows > 0)
        for place in broken:
            gradients[parts[place].span] = float("nan")
        if (self._coding.refuses and total is gradients) or _within(gradients, LARGEST):
            return broken
        # fp16 may hold less
        return [i for i, part in enumerate(parts) if not _within(gradients[part.span], LARGEST)]

    def understands(self, name: str) -> bool:
        """Residuals are in units of gradients: those of any lossy codec will do."""
        return self._coding.lossy and name.partition(":")[0] in _core.codecs() and GradientCodec(name).lossy

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's residuals by parameter, its rank and the world; nothing if nothing is lost."""
        return self._residuals.state_dict() if self._coding.lossy else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back this rank's residuals.

        Raises:
            InvalidArgumentError: they are of another rank or world (see :func:`reshard`), or of no codec.
        """
        if self._coding.lossy:
            self._undecided = []
            self._residuals.load_state_dict(state)
        else:
            super().load_state_dict(state)


class _Settled(NamedTuple):
    """A bucket of a round, and which of its parts nobody has used, or were not finite."""

    flat: Flat
    unsent: list[int]
    broken: list[int]


class _Works:
    """Several calls under way, and what is left to do after them, once."""

    def __init__(self, works: Sequence[Handle], settle: Callable[[], None] | None = None) -> None:
        self._works = works
        self._settle = settle

    def wait(self, timeout: float | None = None) -> None:
        for work in self._works:
            work.wait(timeout)
        settle, self._settle = self._settle, None
        if settle is not None:
            settle()

    def done(self) -> bool:
        return all(work.done() for work in self._works)


def _within(x: Any, limit: float) -> bool:
    """Whether all elements are finite and of at most this magnitude."""
    return magnitude(x) <= limit  # false for NaN


def _places(mask: Any) -> list[int]:
    return mask.nonzero().flatten().tolist() if mask.any() else []
