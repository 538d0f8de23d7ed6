"""gpucomm as the benchmark calls it: NumPy arrays through the public interface."""

from __future__ import annotations

from functools import partial

from gpucomm import Communicator
from gpucomm.bench.peers import Array, Call, as_given

__all__ = ["Gpucomm"]


class Gpucomm:
    """The communicator of this rank."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.transport = comm.transport

    def bind(self, collective: str, algorithm: str, buffer: Array, part: Array) -> Call:
        """A call with this algorithm, its segments chosen by gpucomm."""
        comm, buffer, part = self._comm, as_given(buffer), as_given(part)
        calls: dict[str, Call] = {
            "all_reduce": partial(comm.all_reduce, buffer, algorithm=algorithm),
            "reduce": partial(comm.reduce, buffer, 0, algorithm=algorithm),
            "broadcast": partial(comm.broadcast, buffer, 0, algorithm=algorithm),
            "all_gather": partial(comm.all_gather, part, out=buffer, algorithm=algorithm),
            "reduce_scatter": partial(comm.reduce_scatter, buffer, out=part, algorithm=algorithm),
        }
        return calls[collective]

    def close(self) -> None:
        """Nothing: the communicator belongs to the local world."""
