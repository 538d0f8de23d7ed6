"""The same over TCP: four hosts made of network namespaces, 1 Gbit/s each, connected by an MPI."""

from __future__ import annotations

from gpucomm.reproduce.cluster import cluster, find_mpi
from gpucomm.reproduce.compressed_collectives.measuring import CODED, COLLECTIVES, Measured, measure, seconds
from gpucomm.reproduce.compressed_collectives.points import MIB, Point
from gpucomm.reproduce.hosts import on_hosts, where_possible
from gpucomm.reproduce.run import Cell, Run

__all__ = ["measured"]

_HOSTS, _NBYTES, _CODEC, _REPEATS = 4, 16 * MIB, "int4", 5


def measured(run: Run, collective: str) -> Measured | None:
    """A collective between hosts, measured once a run; None where it cannot be, or is to be quick."""
    found = where_possible(run, lambda: _measured(run))
    return None if found is None else found[collective]


def _measured(run: Run) -> dict[str, Measured]:
    mpi, found = find_mpi(), {}
    links = f"{_HOSTS} network namespaces, 1 Gbit/s each (tc tbf), TCP by {mpi.name}"
    with cluster(_HOSTS, "1gbit") as up:
        for collective in COLLECTIVES:
            run.tell(f"{collective} between {_HOSTS} hosts, {mpi.name}")
            what = (collective, _NBYTES, _CODEC, CODED, _REPEATS)
            by_rank, alpha, beta = on_hosts(up, mpi, _HOSTS, measure, *what)
            point = Point(_HOSTS, Cell("switch", _NBYTES, _NBYTES * beta / alpha, alpha), _CODEC)
            found[collective] = Measured(point, collective, *seconds(by_rank), links)
    return found
