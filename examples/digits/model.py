"""A small network without batch statistics or dropout: what it learns depends on the global batch alone.

It is smooth (tanh, average pooling): where ReLU or a maximum switches, a difference in the last bit of a sum
becomes one in the gradient, which hundreds of steps make large enough to hide an error in the exchange.
"""

from __future__ import annotations

import threading

import torch
from torch import nn

_generator = threading.Lock()  # ranks may be threads, and torch has one generator for all of them


def make_model(seed: int) -> nn.Module:
    """Returns a convolutional network for 8 x 8 images and 10 classes; about 38 thousand parameters."""
    with _generator:
        torch.manual_seed(seed)
        return _layers()


def _layers() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.Tanh(),
        nn.Linear(64, 10),
    )
