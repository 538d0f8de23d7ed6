"""One rank's training: the loop that a user writes, with a clock and a witness beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from digits.data import Images, load, shares
from digits.model import make_model
from gpucomm.comm import Communicator
from gpucomm.errors import InvalidArgumentError
from gpucomm.optim import DistributedOptimizer

PARTS = ("forward and backward", "packing gradients", "waiting for gradients", "optimizer", "other")


@dataclass(frozen=True)
class Settings:
    """What defines a run; equal settings give equal weights."""

    algorithm: str = "auto"
    merge: str = "64KB"
    epochs: int = 12
    batch: int = 64
    rate: float = 0.05
    momentum: float = 0.9
    seed: int = 7


@dataclass
class Result:
    """What one rank saw of a run.

    Attributes:
        losses: per step, the mean over the global batch.
        step_s: per step, seconds.
        parts_s: per part of a step (see PARTS), one list of seconds per step.
        bytes_per_step: sent by all ranks together, by the transport's counters.
        unlike: the first step after which the ranks' weights were not bit-identical; -1: they always were.
        weights: flat, float32.
        accuracy: on the test images, from 0 to 1.
    """

    algorithm: str
    world: int
    losses: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    parts_s: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})
    bytes_per_step: float = 0.0
    unlike: int = -1
    weights: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    accuracy: float = 0.0


def check_batch(batch: int, ranks: int, images: int) -> None:
    """Raises InvalidArgumentError unless so many of the images are there, and divide among the ranks."""
    if batch > images:
        raise InvalidArgumentError(f"the global batch must be of at most {images} images, got {batch}")
    if batch % ranks:
        raise InvalidArgumentError(
            f"the global batch must divide among the ranks, got {batch} images for {ranks} ranks"
        )


class Training:
    """A rank's model, optimizer and data.

    Args:
        comm: the ranks.
        settings: the same on all ranks.

    Raises:
        InvalidArgumentError: the global batch does not divide among the ranks, or there are fewer images.
    """

    def __init__(self, comm: Communicator, settings: Settings) -> None:
        torch.set_num_threads(1)  # the ranks share the cores; the reference must not have more of them
        self.comm, self.settings = comm, settings
        self.images, self.test_images = load()
        check_batch(settings.batch, comm.world, len(self.images.labels))
        self.model = make_model(settings.seed + comm.rank)  # rank 0's parameters win at wrapping
        plain = torch.optim.SGD(self.model.parameters(), lr=settings.rate, momentum=settings.momentum)
        self.optimizer = DistributedOptimizer(
            plain, self.model, comm, merge=settings.merge, algorithm=settings.algorithm
        )
        self.result = Result(settings.algorithm if comm.world > 1 else "one process", comm.world)
        self.epoch = 0

    @property
    def steps_per_epoch(self) -> int:
        """How many global batches an epoch has."""
        return len(self.images.labels) // self.settings.batch

    def run_epoch(self) -> int:
        """Trains on every batch once; returns how many steps that were."""
        settings = self.settings
        batches = shares(
            self.images, self.epoch, settings.batch, settings.seed, self.comm.rank, self.comm.world
        )
        begin = len(self.result.losses)
        while self._timed_step(batches):
            self._compare_weights()
        self.epoch += 1
        return len(self.result.losses) - begin

    def _timed_step(self, batches: Iterator[Images]) -> bool:
        before, start = self.optimizer.stats(), perf_counter()
        share: Images | None = next(batches, None)
        if share is None:
            return False
        self.optimizer.zero_grad()
        picked = perf_counter()
        loss = cross_entropy(self.model(share.pixels), share.labels)
        loss.backward()
        computed = perf_counter()
        self.optimizer.step()
        stepped = perf_counter()
        after = self.optimizer.stats()
        packing, waiting = (after[key] - before[key] for key in ("hooks_s", "exposed_s"))
        spent = (computed - picked - packing - waiting, packing, waiting, stepped - computed, picked - start)
        for part, seconds in zip(PARTS, spent, strict=True):
            self.result.parts_s[part].append(seconds)
        self.result.step_s.append(stepped - start)
        self.result.losses.append(loss.item())
        return True

    def _compare_weights(self) -> None:
        digest = hashlib.blake2b(self._weights().tobytes(), digest_size=16).digest()
        digests = self.comm.all_gather(np.frombuffer(digest, np.uint8).copy()).tobytes()
        if digests != digest * self.comm.world and self.result.unlike < 0:
            self.result.unlike = len(self.result.losses)

    def _weights(self) -> np.ndarray:
        flat = torch.cat([param.detach().reshape(-1) for param in self.model.parameters()])
        return np.asarray(flat)

    def finish(self) -> Result:
        """Gathers what only all ranks together know, and tests the model."""
        losses = np.array(self.result.losses)
        self.result.losses = self.comm.all_reduce(losses, op="mean").tolist()
        sent = np.array([self.optimizer.stats()["bytes_per_step"]])
        self.result.bytes_per_step = float(self.comm.all_reduce(sent)[0])
        with torch.no_grad():
            right = self.model(self.test_images.pixels).argmax(1) == self.test_images.labels
        self.result.accuracy = right.float().mean().item()
        self.result.weights = self._weights()
        return self.result
