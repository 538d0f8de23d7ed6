"""Gloo, as torch.distributed offers it, over TCP on the loopback interface.

Its arguments are torch tensors on the very memory of the NumPy arrays that gpucomm gets.
"""

from __future__ import annotations

import importlib.util
import os
from datetime import timedelta
from functools import partial
from typing import Any

from gpucomm.bench.peers import Array, Call, as_given
from gpucomm.errors import InvalidArgumentError, UnavailableError

__all__ = ["check", "join"]

_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8")


def check(dtype: str) -> None:
    """Whether Gloo can take part.

    Raises:
        UnavailableError: torch is not installed.
        InvalidArgumentError: Gloo has no reductions of this dtype.
    """
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError("gloo needs torch, which is not installed: pip install 'gpucomm[torch]'")
    if dtype not in _DTYPES:
        raise InvalidArgumentError(f"gloo does not take {dtype}; it takes {', '.join(_DTYPES)}")


def join(rank: int, ranks: int, folder: str, timeout: float) -> Gloo:
    """Meet the other ranks through a file in `folder`."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "gloo"), ranks)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=timeout)
    )
    return Gloo()


class Gloo:
    """The default process group of this rank."""

    transport = "tcp"

    def bind(self, collective: str, algorithm: str, buffer: Array, part: Array) -> Call:
        """A call on tensors that share the arrays' memory."""
        import torch
        import torch.distributed as dist

        whole, own = (torch.as_tensor(as_given(array)) for array in (buffer, part))
        # Newer versions of torch have other names for the calls on one tensor.
        gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        calls: dict[str, Call] = {
            "all_reduce": partial(dist.all_reduce, whole),
            "reduce": partial(dist.reduce, whole, 0),
            "broadcast": partial(dist.broadcast, whole, 0),
            "all_gather": partial(gather, whole, own),
            "reduce_scatter": partial(scatter, own, whole),
        }
        return calls[collective]

    def close(self) -> None:
        """Leave the process group."""
        import torch.distributed as dist

        dist.destroy_process_group()
