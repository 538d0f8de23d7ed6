"""MPI, by mpi4py, as the wire between nodes."""

from __future__ import annotations

import atexit
import time
from typing import Any

from gpucomm import _core
from gpucomm.ending import ended_by_error
from gpucomm.errors import CollectiveTimeoutError, UnavailableError
from gpucomm.launch.fabric import Fabric
from gpucomm.launch.ranks import Ranks

__all__ = ["open_mpi"]

_LEAST_TAGS = 32767  # that the standard promises
_FINALIZE_S = 10.0  # how long MPI may take to end where an error ends this rank
_STREAMS = 4  # of a communicator: data and control, of two channels
_own: list[Any] = []  # our communicator, and when it is there: who meets in vain may try again


def open_mpi(ranks: Ranks, timeout: float) -> Fabric:
    """The wire of an MPI job.

    Args:
        ranks: who the launcher says this process is; MPI must say the same.
        timeout: seconds that all ranks have to come.

    Raises:
        UnavailableError: mpi4py is missing, its MPI allows no calls from several threads, or it was not this
            MPI that started the ranks.
        CollectiveTimeoutError: some ranks did not come. Where that is before MPI is initialised, which
            nobody can leave, the process ends instead.
    """
    where, deadline = f"rank {ranks.rank} of {ranks.world}", time.monotonic() + timeout
    try:
        with _core.Watchdog(
            timeout, f"gpucomm: {where} waited {timeout:g} s in MPI_Init for all ranks, and cannot leave it"
        ):
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UnavailableError(
            f"{where}: the ranks are on several nodes, which MPI could connect, but mpi4py does not load"
            f" ({error}): pip install 'gpucomm[mpi]' and the MPI that started the ranks"
        ) from error
    atexit.unregister(_limit_finalize)
    atexit.register(_limit_finalize)  # whatever this raises
    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (ranks.rank, ranks.world):
        library = MPI.Get_library_version().split("\n")[0].split(",")[0]
        raise UnavailableError(
            f"{where}, as its launcher says, is rank {world.rank} of {world.size} to {library}, the MPI that"
            " mpi4py has loaded: start the ranks by that MPI's own mpiexec"
        )
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        raise UnavailableError(
            f"{where}: MPI was initialised for one thread at a time, and gpucomm's progress thread needs"
            " MPI_THREAD_MULTIPLE: leave mpi4py.rc.thread_level at its default"
        )
    if not _own:
        _own.append(world.Idup())
    own, request = _own[0]
    while not request.Test():
        if time.monotonic() > deadline:
            raise CollectiveTimeoutError(
                f"{where} waited {timeout:g} s for all ranks to call gpucomm.init (in MPI_Comm_idup)"
            )
        time.sleep(0.001)
    own.Set_errhandler(MPI.ERRORS_RETURN)
    wire = _core.mpi_wire(
        MPI.__file__, handle_bytes=MPI._sizeof(MPI.Comm), communicator=_value(own), byte=_value(MPI.BYTE)
    )
    most_tags = world.Get_attr(MPI.TAG_UB) or _LEAST_TAGS
    return Fabric("mpi", wire, most_tags // _STREAMS)


def _limit_finalize() -> None:
    """MPI_Finalize, which mpi4py calls when Python has ended, waits for all ranks, one that hangs too."""
    if ended_by_error():
        text = "gpucomm: MPI waits for a rank that does not end; this process ends without it"
        _core.end_within(_FINALIZE_S, text)


def _value(thing: object) -> int:
    from mpi4py import MPI

    return int(MPI._handleof(thing)) & (1 << 64) - 1
