"""BSP-SGD layer by layer: the same training by a pipeline, a tree and an exchange."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from gpucomm.comm import Communicator
from gpucomm.reproduce.claims import Outcome, Row
from gpucomm.reproduce.pictures import Curve, Picture
from gpucomm.reproduce.run import Cell, Run, ratio

__all__ = ["bsp_sgd_step"]

_DEPTH, _BATCH = 2, 16  # hidden layers; samples a rank
_LP, _MST, _BE = "linear_pipeline", "binomial_tree", "bidirectional_exchange"
_CUT = f"{_LP}, 5 segments"  # the same sums in the same order, so the same bits
_COMPUTE = "compute"  # no exchange at all
_WAYS: dict[str, dict[str, Any] | None] = {
    _LP: {"algorithm": _LP},
    _MST: {"algorithm": _MST},
    _BE: {"algorithm": _BE},
    _CUT: {"algorithm": _LP, "segments": 5},
    _COMPUTE: None,
}
_ROUNDING = 1e-5  # relative: some hundred roundings of float32


def bsp_sgd_step(run: Run) -> Outcome:
    """Step times by tree and exchange over those by the pipeline, and how far the losses are apart."""
    ranks, turns, steps, width = (4, 2, 2, 768) if run.quick else (8, 4, 4, 1024)
    width //= run.hurry
    # The message is that of one hidden layer.
    cell = Cell("switch", 4 * width * width, 500, (0.5e-4 if run.quick else 1e-4) / run.hurry)
    run.tell(f"training by {ranks} ranks")
    found = run.on_ranks(cell, ranks, _train, width, turns, steps)
    times = {way: [max(some) for some in zip(*(r[way][0] for r in found), strict=True)] for way in _WAYS}
    losses = {
        way: [sum(some) / ranks for some in zip(*(r[way][1] for r in found), strict=True)] for way in _WAYS
    }
    share = 1 - ratio(times[_COMPUTE], times[_LP])
    fixed = run.setting(cell, ranks, repeats=len(times[_LP]), communication_share=share)
    rows = [_step_row(fixed, other, times) for other in (_MST, _BE)]
    rows += [_loss_row(fixed, other, losses) for other in (_MST, _BE)]
    losses[_LP] = losses[_LP][: len(losses[_CUT])]
    differ = float(sum(a != b for a, b in zip(losses[_LP], losses[_CUT], strict=True)))
    samples = {way: losses[way] for way in (_LP, _CUT)}
    text = "losses that differ in any bit between two numbers of segments: the sums are in the same order"
    rows.append(Row("bsp_sgd_step", 0.0, differ, "steps", "counted", "==", 0.0, fixed, samples, text))
    ways = (_LP, _MST, _BE, _COMPUTE)
    seconds = [median(times[way]) for way in ways]
    title = f"A step of layer-wise BSP-SGD, {ranks} ranks, emulated switch"
    curves = [Curve("median", range(len(ways)), seconds)]
    return Outcome(rows, Picture(title, "", "seconds a step", curves, names=ways))


def _step_row(fixed: dict[str, Any], other: str, times: dict[str, list[float]]) -> Row:
    figures = (None, ratio(times[other], times[_LP]), f"T({other})/T({_LP})", "emulated", ">=", 1.0)
    samples = {way: times[way] for way in (_LP, other, _COMPUTE)}
    text = f"{_DEPTH} hidden layers, segments chosen by the cost model"
    return Row("bsp_sgd_step", *figures, fixed, samples, text)


def _loss_row(fixed: dict[str, Any], other: str, losses: dict[str, list[float]]) -> Row:
    pairs = zip(losses[other], losses[_LP], strict=True)
    off = max(abs(a / b - 1) for a, b in pairs)
    samples = {way: losses[way] for way in (_LP, other)}
    text = f"losses by {other} and by {_LP}: sums in another order, so equal but for rounding"
    return Row("bsp_sgd_step", 0.0, off, "relative", "emulated", "<=", _ROUNDING, fixed, samples, text)


def _train(
    comm: Communicator, width: int, turns: int, steps: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Seconds a step of each turn, and the losses of all steps, each way, on this rank.

    The ways take turns of some steps. The first turn is not timed, and the only one of the other cut.
    """
    from time import perf_counter

    import torch

    torch.set_num_threads(1)
    trainings = {way: _Training(comm, width, how) for way, how in _WAYS.items()}
    found: dict[str, tuple[list[float], list[float]]] = {way: ([], []) for way in _WAYS}
    for turn in range(1 + turns):
        for way, training in trainings.items():
            if turn and way == _CUT:
                continue
            comm.barrier()
            begin = perf_counter()
            found[way][1].extend(training.step() for _ in range(steps))
            training.end()
            if turn:
                found[way][0].append((perf_counter() - begin) / steps)
    return found


class _Training:
    """The same network on the same data, trained one way; None: by each rank for itself."""

    def __init__(self, comm: Communicator, width: int, how: dict[str, Any] | None) -> None:
        import torch
        from torch import nn

        from gpucomm.optim import LayerwiseBSP

        same = torch.Generator().manual_seed(0)
        hidden = [layer for _ in range(_DEPTH) for layer in (nn.Linear(width, width), nn.Tanh())]
        self._model = nn.Sequential(nn.Linear(64, width), nn.Tanh(), *hidden, nn.Linear(width, 10))
        with torch.no_grad():
            for param in self._model.parameters():
                param.uniform_(-1, 1, generator=same).div_(param.shape[-1] ** 0.5)
        self._optimizer: Any = torch.optim.SGD(self._model.parameters(), lr=0.05, momentum=0.9)
        self.end: Callable[[], None] = lambda: None
        if how is not None:
            self._optimizer = LayerwiseBSP(self._optimizer, self._model, comm, **how)
            self.end = self._optimizer.synchronize  # the weights of the last step have arrived
        self._inputs = torch.randn(comm.world * _BATCH, 64, generator=same)[comm.rank :: comm.world]
        self._targets = self._inputs[:, :10].argmax(1)
        self._loss = nn.functional.cross_entropy

    def step(self) -> float:
        """One step; returns the loss before it."""
        self._optimizer.zero_grad()
        loss = self._loss(self._model(self._inputs), self._targets)
        loss.backward()
        self._optimizer.step()
        return float(loss.item())
