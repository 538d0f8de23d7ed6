"""Scikit-learn's handwritten digits, a fixed split, and each rank's share of every batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

TEST_SHARE = 5  # every fifth image is kept for the test


class Images(NamedTuple):
    """Images of shape (n, 1, 8, 8), float32 in [-1, 1], and labels of shape (n,), int64."""

    pixels: torch.Tensor
    labels: torch.Tensor


def load() -> tuple[Images, Images]:
    """Returns the training and the test images: the same split on every rank and in every run."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pixels = torch.from_numpy((digits.images[order] / 8.0 - 1.0).astype(np.float32)).unsqueeze(1)
    labels = torch.from_numpy(digits.target[order].astype(np.int64))
    test = torch.arange(len(labels)) % TEST_SHARE == 0
    return Images(pixels[~test], labels[~test]), Images(pixels[test], labels[test])


def shares(images: Images, epoch: int, batch: int, seed: int, rank: int, world: int) -> Iterator[Images]:
    """Yields one rank's share of every global batch of an epoch.

    The permutation comes from the seed and the epoch alone, so all ranks cut the same batches. The last,
    smaller one is left out: the shares must be equal for the mean of the ranks' means to be the batch's.
    """
    order = np.random.default_rng([seed, epoch]).permutation(len(images.labels))
    share = batch // world
    for begin in range(0, len(order) - batch + 1, batch):
        mine = order[begin + rank * share : begin + (rank + 1) * share]
        yield Images(images.pixels[mine], images.labels[mine])
