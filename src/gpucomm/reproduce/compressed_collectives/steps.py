"""Steps of FSDP2 over emulated links: dense, coded, coded at each hop, and without communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from gpucomm import cost
from gpucomm.bench.learning import has_learnt
from gpucomm.comm import Communicator
from gpucomm.reproduce.compressed_collectives.idle import Idle
from gpucomm.reproduce.compressed_collectives.points import Point
from gpucomm.reproduce.run import Run, unlinked

__all__ = [
    "AUTO",
    "CODECS",
    "CODED",
    "CODING",
    "COMPUTE",
    "PER_HOP",
    "RANKS",
    "SHARES",
    "Steps",
    "losses",
    "steps",
]

RANKS = 4
# Not zfp: on the fastest links four ranks on two cores code longer in it than the bytes that it saves take.
CODECS = {"all_gather": "int8", "reduce_scatter": "int8"}
CODED, PER_HOP, AUTO = "coded_ring", "ring_per_hop", "auto"
COMPUTE, CODING = "compute", "compute and code"  # over links that take no time
_DENSE = ("ring", "direct")
# At a rate of 3e-3 this width learns slowly and unsteadily, and with int8 gradients 0.4 nats behind.
_MODEL = {"width": 256, "depth": 4, "context": 64, "batch": 2, "rate": 1e-3}
_QUICK_MODEL = {"width": 128, "depth": 4, "context": 32, "batch": 2}
# MB/s of the links, by the share of communication in a dense step that they gave on 2 cores: where what is
# wanted is tried
SHARES = {0.72: 88.0, 0.5: 195.0, 0.3: 500.0}
_RATES = (10.0, 5000.0)
_TRIALS, _NEAR = 2, 0.025  # of a share: how often its links are tried, how far off it may be
_ALPHA_S = 5e-6
_MOST_WARM = 100  # steps in which "auto" learns, as in long training it has
_LOSS_LINKS = 2000  # MB/s: only what is learnt counts there


class Steps(NamedTuple):
    """What was measured on one kind of links.

    Attributes:
        point: the links; its message is what gathers a block, its codec that of the parameters.
        times: seconds a step, by way, of each turn.
        per_hop: by collective, seconds of one of a block that codes at each hop.
        sizes: bytes of the parameters that travel together: the rest of the model, then its blocks.
    """

    point: Point
    times: dict[str, list[float]]
    per_hop: dict[str, list[float]]
    sizes: list[int]

    @property
    def dense(self) -> str:
        """The faster of the dense ways."""
        return min(_DENSE, key=lambda name: median(self.times[name]))

    @property
    def share(self) -> float:
        """Of communication in a dense step."""
        return 1 - median(self.times[COMPUTE]) / median(self.times[self.dense])

    @property
    def c(self) -> float:
        """What coding adds to a hop, over its time on the wire, of a block's all-gather."""
        return self._coding_s("all_gather") / self._wire_s("all_gather")

    def rate_for(self, share: float, rate: float) -> float:
        """MB/s of links on which the share is another, where these have `rate`.

        What of communication is not hidden goes with the slowness of the links.
        """
        compute = median(self.times[COMPUTE])
        wanted = rate * (median(self.times[self.dense]) - compute) * (1 - share) / (compute * share)
        low, high = _RATES
        return float(f"{min(max(wanted, low), high):.2g}")

    def saved(self, name: str, over: str) -> float:
        """How many percent less time one way takes than another."""
        return 100 * (1 - median(self.times[name]) / median(self.times[over]))

    def model_saved(self) -> float:
        """What the cost model says that the coded ring saves of a dense step, in percent.

        The step takes as long as the cores want, to compute and code, as on links that take no time, or as
        the links do, where that is longer: computing, and what the coded ring takes on them with such a c. As
        much of that is hidden as of the dense communication.
        """
        compute, dense_s = median(self.times[COMPUTE]), median(self.times[self.dense])
        dense, coded = self._links_s(self.dense), self._links_s(CODED)
        hidden = max(0.0, dense - (dense_s - compute))
        return 100 * (1 - max(median(self.times[CODING]), compute + max(0.0, coded - hidden)) / dense_s)

    def _links_s(self, algorithm: str) -> float:
        """Of a step: all is gathered, the blocks once more in the backward pass, and all is reduced."""
        calls = [("all_gather", size) for size in (*self.sizes, *self.sizes[1:])]
        calls += [("reduce_scatter", size) for size in self.sizes]
        return sum(self._call_s(collective, algorithm, size) for collective, size in calls)

    def _call_s(self, collective: str, algorithm: str, size: int) -> float:
        coding = None
        if algorithm == CODED:
            coding = self._point(collective).coding(self._coding_s(collective))
        return cost.cost(
            collective, algorithm, world=RANKS, nbytes=size, links=self.point.cell.model, coding=coding
        )

    def _coding_s(self, collective: str) -> float:
        """Seconds that a hop takes longer than on the wire."""
        return max(0.0, median(self.per_hop[collective]) / (RANKS - 1) - self._wire_s(collective))

    def _wire_s(self, collective: str) -> float:
        return self._point(collective).wire_s

    def _point(self, collective: str) -> Point:
        return self.point._replace(codec=CODECS[collective])


def steps(run: Run, share: float) -> Steps:
    """Measures steps on the links that are pinned for a share, once a run."""
    return run.once(f"steps {share}", lambda: _steps(run, share))  # type: ignore[no-any-return]


def _steps(run: Run, share: float) -> Steps:
    run.tell(f"training by FSDP2, {RANKS} ranks, links for a share of {share:g}")
    rate, names = SHARES[share], (*_DENSE, COMPUTE)
    if run.quick:
        return _measured(run, rate, (*names, CODING, CODED, PER_HOP))
    rate = _measured(run, rate, names).rate_for(share, rate)
    tried: list[Steps] = []
    while len(tried) < _TRIALS:
        tried.append(_measured(run, rate, (*names, CODING, CODED, PER_HOP, AUTO)))
        if abs(tried[-1].share - share) <= _NEAR:
            break
        rate = tried[-1].rate_for(share, rate)
    return min(tried, key=lambda some: abs(some.share - share))


def _measured(run: Run, rate: float, names: Sequence[str]) -> Steps:
    """Measures these ways on links of so many MB/s."""
    model, how_often = _how_much(run)
    algorithms, codes = {COMPUTE: "auto", CODING: CODED}, (CODING, CODED, PER_HOP, AUTO)
    ways = {
        name: {"algorithm": algorithms.get(name, name), **model, **(CODECS if name in codes else {})}
        for name in names
    }
    point = _point(run, rate, model["width"])
    found = run.on_ranks(point.cell, RANKS, _train, ways, point.cell.nbytes, *how_often)
    times, per_hop = (
        {
            key: [max(some) for some in zip(*(rank[i][key] for rank in found), strict=True)]
            for key in found[0][i]
        }
        for i in range(2)
    )
    return Steps(point, times, per_hop, found[0][2])


def _how_much(run: Run) -> tuple[dict[str, Any], tuple[int, int, int, int]]:
    """The model; how many steps warm up, turns are timed, steps a turn has, and steps "auto" learns in."""
    if run.hurry > 1:
        return {"width": 32, "depth": 2, "context": 16, "batch": 1}, (1, 1, 1, 2)
    return (_QUICK_MODEL, (4, 3, 2, _MOST_WARM)) if run.quick else (_MODEL, (12, 7, 3, _MOST_WARM))


def _point(run: Run, rate: float, width: int) -> Point:
    nbytes = 48 * width * width  # float32, without the biases
    cell = run.cell("switch", nbytes, nbytes / (rate * 1e6) / _ALPHA_S, _ALPHA_S)
    return Point(RANKS, cell, CODECS["all_gather"])


def _train(
    comm: Communicator,
    ways: Mapping[str, Mapping[str, Any]],
    nbytes: int,
    warm: int,
    turns: int,
    each: int,
    most_learning: int,
) -> tuple[dict[str, list[float]], dict[str, list[float]], list[int]]:
    """Seconds a step of each turn, by way; of a block coded per hop; the bytes that travel together."""
    import gc
    from time import perf_counter

    from gpucomm.reproduce.compressed_collectives.transformer import Settings, Training

    links: dict[str, Any] = {COMPUTE: Idle(comm)}
    if CODING in ways:
        links[CODING] = unlinked(comm)
        links[CODING].set_links(comm.links)  # for which it chooses
    trainings = {name: Training(links.get(name, comm), Settings(**how)) for name, how in ways.items()}
    gc.collect()
    gc.freeze()  # or now and then a step goes through all of torch's objects
    times: dict[str, list[float]] = {name: [] for name in ways}
    per_hop: dict[str, list[float]] = {name: [] for name in CODECS}
    calls = _block_calls(comm, nbytes)
    for turn in range(turns + 1):
        for name, training in trainings.items():
            count = each if turn else warm
            if name == AUTO and not turn:
                _learn_to_choose(comm, training, most_learning)
            comm.barrier()
            begin = perf_counter()
            for _ in range(count):
                training.step()
            times[name].append((perf_counter() - begin) / count)
        for name, call in calls.items():
            comm.barrier()
            begin = perf_counter()
            call()
            per_hop[name].append(perf_counter() - begin)
    for some in (times, per_hop):
        for mine in some.values():
            del mine[0]  # it warmed up
    model = trainings[COMPUTE].model
    blocks = [4 * sum(p.numel() for p in block.parameters()) for block in model.blocks]
    rest = 4 * sum(p.numel() for p in model.parameters()) - sum(blocks)
    return times, per_hop, [rest, *blocks]


def _learn_to_choose(comm: Communicator, training: Any, most: int) -> None:
    """Steps until "auto" has taken a candidate for all calls with a codec; as many on every rank."""
    for _ in range(most):
        training.step()
        kinds = [row for row in comm.tuning() if row["codec"] and len(row["candidates"]) > 1]
        if all(map(has_learnt, kinds)):
            return


def _block_calls(comm: Communicator, nbytes: int) -> dict[str, Callable[[], Any]]:
    """Each collective on as many elements as a block has, coded per hop."""
    import numpy as np

    part = np.random.default_rng(comm.rank).standard_normal(nbytes // 4 // RANKS, np.float32)
    whole = np.tile(part, RANKS)
    gather, scatter = CODECS["all_gather"], CODECS["reduce_scatter"]
    return {
        "all_gather": lambda: comm.all_gather(part, codec=gather, algorithm=PER_HOP, segments=1),
        "reduce_scatter": lambda: comm.reduce_scatter(whole, codec=scatter, algorithm=PER_HOP, segments=1),
    }


def losses(run: Run) -> tuple[dict[str, list[float]], int, Point]:
    """The held-out losses, dense and coded, on the way and after the last step; how many steps; the links."""
    model, _ = _how_much(run)
    count = 4 if run.hurry > 1 else 24 if run.quick else 400
    run.tell(f"training by FSDP2, {count} steps, dense and coded")
    ways = {"dense": {"algorithm": _DENSE[0], **model}, CODED: {"algorithm": CODED, **CODECS, **model}}
    point = _point(run, _LOSS_LINKS, model["width"])
    return run.on_ranks(point.cell, RANKS, _learn, ways, count)[0], count, point


def _learn(comm: Communicator, ways: Mapping[str, Mapping[str, Any]], count: int) -> dict[str, list[float]]:
    """The held-out loss four times on the way, by way; the same on all ranks."""
    from gpucomm.reproduce.compressed_collectives.transformer import Settings, Training

    found = {}
    for name, how in ways.items():
        training = Training(comm, Settings(**how))
        found[name] = [training.held_out_loss()]
        for _ in range(4):
            for _ in range(count // 4):
                training.step()
            found[name].append(training.held_out_loss())
    return found
