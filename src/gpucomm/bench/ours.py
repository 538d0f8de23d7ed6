"""gpucomm as the benchmark calls it: NumPy arrays through the public interface."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpucomm import Communicator
from gpucomm.bench.peers import Array, Call, as_given

__all__ = ["Gpucomm"]


class Gpucomm:
    """The communicator of this rank."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.transport = comm.transport

    def bind(
        self,
        collective: str,
        algorithm: str,
        buffer: Array,
        part: Array,
        segments: int | None = None,
        codec: str | None = None,
        op: str = "sum",
    ) -> Call:
        """A call with this algorithm, so many segments (None: chosen by gpucomm), and a codec or none."""
        comm, buffer, part = self._comm, as_given(buffer), as_given(part)
        given = {"algorithm": algorithm, "segments": segments, "codec": codec}
        usual = {"algorithm": "auto", "segments": None, "codec": None}
        how: dict[str, Any] = {name: value for name, value in given.items() if value != usual[name]}
        fold = how if op == "sum" else {**how, "op": op}
        whole = buffer if comm.rank == 0 else None  # of gather and scatter
        calls: dict[str, Call] = {
            "all_reduce": partial(comm.all_reduce, buffer, **fold),
            "reduce": partial(comm.reduce, buffer, 0, **fold),
            "broadcast": partial(comm.broadcast, buffer, 0, **how),
            "all_gather": partial(comm.all_gather, part, out=buffer, **how),
            "reduce_scatter": partial(comm.reduce_scatter, buffer, out=part, **fold),
            "gather": partial(comm.gather, part, 0, out=whole, **how),
            "scatter": partial(comm.scatter, whole, 0, out=part, **how),
            "all_to_all": partial(comm.all_to_all, buffer, out=buffer, **how),
        }
        return calls[collective]

    def close(self) -> None:
        """Nothing: the communicator belongs to the local world."""
