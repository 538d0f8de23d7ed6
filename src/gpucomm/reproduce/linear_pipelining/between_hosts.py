"""The same claims over TCP: hosts made of network namespaces, 1 Gbit/s each, connected by an MPI.

Only bandwidth is told by such links: what comes on top of it is what the kernel takes to schedule.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpucomm.reproduce.claims import Row, setting
from gpucomm.reproduce.cluster import Cluster, Mpi, cluster, find_mpi
from gpucomm.reproduce.hosts import on_hosts, where_possible
from gpucomm.reproduce.linear_pipelining.cells import MIB
from gpucomm.reproduce.run import Call, Run, last_ends, measure_calls, ratio

__all__ = ["exchange_rows", "fusing_rows", "pipeline_rows", "tree_rows"]

_HOSTS = (2, 3, 4)
_NBYTES, _SEGMENTS, _REPEATS = 16 * MIB, 64, 4
_LP, _LP_REDUCE = (Call(name, "linear_pipeline", _SEGMENTS) for name in ("broadcast", "reduce"))
_TREES = [Call(name, "binomial_tree") for name in ("broadcast", "reduce", "all_reduce")]
_EXCHANGES = [Call(name, "bidirectional_exchange") for name in ("broadcast", "reduce", "all_reduce")]
_FUSED, _UNFUSED = (
    Call("all_reduce", name, _SEGMENTS) for name in ("linear_pipeline", "linear_pipeline_unfused")
)
_RING = Call("all_reduce", "ring")
_CALLS = (_LP, _LP_REDUCE, _FUSED, _UNFUSED, _RING, *_TREES, *_EXCHANGES)


_Goal = tuple[str, float | None, str, float | None]  # unit, paper, relation, goal


class _Times(NamedTuple):
    """Seconds of each call by number of hosts, and what the probe found between the most of them."""

    by_hosts: dict[int, dict[Call, list[float]]]
    x: float
    links: str

    def of(self, call: Call) -> dict[int, list[float]]:
        return {hosts: times[call] for hosts, times in self.by_hosts.items()}


def pipeline_rows(run: Run) -> list[Row]:
    """Whether a pipeline's time depends on the number of hosts."""
    rows = []
    model = (_HOSTS[-1] - 2 + _SEGMENTS) / _SEGMENTS
    for call in (_LP, _LP_REDUCE):
        rows += _growth(run, "lp_invariant", call, 1.0, "<=", 1.15, f"the model: {model:.3f}")
    return rows


def tree_rows(run: Run) -> list[Row]:
    """Whether a tree's time grows as log p."""
    note = "log2 4 = 2"
    return [row for call in _TREES for row in _growth(run, "mst_log_p", call, 2.0, ">=", 1.8, note)]


def exchange_rows(run: Run) -> list[Row]:
    """The pipeline beside the exchange."""
    note = "the limit for long messages is 2(p-1)/p = 1.5"
    rows = []
    for be, lp, paper in ((_EXCHANGES[0], _LP, 2.0), (_EXCHANGES[1], _LP_REDUCE, None)):
        rows += _against(run, "lp_vs_be_broadcast", be, lp, ("T(BE)/T(LP)", paper, ">=", None), note)
    return rows


def fusing_rows(run: Run) -> list[Row]:
    """On a switch, that fusing does not pay and that the ring is faster."""
    claim = "switch_auto_not_fused"
    first = _against(run, claim, _UNFUSED, _FUSED, ("T(linear_pipeline_unfused)/T(fused)", None, "<=", 1.1))
    rows = first + _against(run, claim, _FUSED, _RING, ("T(fused)/T(ring)", None, ">=", 1.0))
    for other in (_TREES[2], _EXCHANGES[2]):
        rows += _against(run, claim, other, _FUSED, (f"T({other.algorithm})/T(fused)", None, ">=", None))
    return rows


def _growth(
    run: Run, claim: str, call: Call, paper: float, relation: str, goal: float, note: str
) -> list[Row]:
    found = _times(run)
    if found is None:
        return []
    times, most = found.of(call), _HOSTS[-1]
    samples = {f"p={hosts}": some for hosts, some in times.items()}
    growth = (paper, ratio(times[most], times[2]), f"T({most})/T(2)", "measured", relation, goal)
    return [Row(claim, *growth, _setting(found), samples, f"{call.collective} between hosts; {note}")]


def _against(run: Run, claim: str, over: Call, under: Call, goal: _Goal, note: str = "") -> list[Row]:
    found = _times(run)
    if found is None:
        return []
    times = found.by_hosts[_HOSTS[-1]]
    unit, paper, relation, wanted = goal
    figures = (paper, ratio(times[over], times[under]), unit, "measured", relation, wanted)
    samples = {call.algorithm: times[call] for call in (under, over)}
    text = f"{over.collective} between hosts" + (f"; {note}" if note else "")
    return [Row(claim, *figures, _setting(found), samples, text)]


def _setting(found: _Times) -> dict[str, Any]:
    return setting(ranks=_HOSTS[-1], nbytes=_NBYTES, links=found.links, x=found.x, repeats=_REPEATS)


def _times(run: Run) -> _Times | None:
    """All calls on 2, 3 and 4 hosts, measured once a run; None where it cannot be, or is to be quick."""
    return where_possible(run, lambda: _measured(run))  # type: ignore[no-any-return]


def _measured(run: Run) -> _Times:
    mpi = find_mpi()
    by_hosts, x = {}, 0.0
    with cluster(_HOSTS[-1], "1gbit") as up:
        for hosts in _HOSTS:
            run.tell(f"all calls between {hosts} hosts, {mpi.name}")
            by_hosts[hosts], x = _job(up, mpi, hosts)
    return _Times(by_hosts, x, f"{_HOSTS[-1]} network namespaces, 1 Gbit/s each (tc tbf), TCP by {mpi.name}")


def _job(up: Cluster, mpi: Mpi, hosts: int) -> tuple[dict[Call, list[float]], float]:
    found = on_hosts(up, mpi, hosts, measure_calls, _NBYTES, _CALLS, _REPEATS)
    return dict(zip(_CALLS, last_ends(found.by_rank), strict=True)), _NBYTES * found.beta / found.alpha
