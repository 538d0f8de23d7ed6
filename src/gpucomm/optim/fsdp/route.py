"""How the messages of one collective travel: by which algorithm, and which of them in which codec."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gpucomm import _core
from gpucomm.comm import Communicator
from gpucomm.exchange.gradient_codec import GradientCodec, magnitude

__all__ = ["Route", "sums_can_be_coded"]


class Route(GradientCodec):
    """A codec and an algorithm for one collective.

    Args:
        codec: a spec; None or "dense": none.
        algorithm: of the collective. Dense messages take "auto" where it is one for coded messages only.

    Attributes:
        dense: how a message without the codec travels, as keywords.
        coded: how one with it does.
        chooses: whether "auto" decides which of the two is faster.
    """

    def __init__(self, codec: str | None, algorithm: str) -> None:
        super().__init__(codec)
        about = _core.algorithms().get(algorithm)
        self.dense: dict[str, Any] = {"algorithm": "auto" if about and about["coded"] else algorithm}
        self.coded: dict[str, Any] = {"algorithm": algorithm, "codec": codec}
        self.chooses = algorithm == "auto"


def sums_can_be_coded(comm: Communicator, x: Any, coding: GradientCodec) -> bool:
    """Whether every sum over the ranks is finite, and one that the codec carries; the same on every rank.

    Args:
        comm: the ranks; they exchange four bytes.
        x: a floating tensor, alike on all ranks.
        coding: the codec.
    """
    total = comm.all_reduce(np.array([magnitude(x)], np.float32))
    # Half of what the dtype holds: codecs' errors and residuals come on top.
    return bool(total[0] < min(torch.finfo(x.dtype).max / 2, coding.largest(world=1)))  # summed already
