"""CUDA's streams as a record: which stream has what behind it. Host tensors pass for those of a GPU.

What training orders by streams is tested with it where there is no GPU: a collective is an operation that its
stream holds from wait() on, as gpucomm's are; who waits for a stream has behind it what that holds.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from types import SimpleNamespace

import torch

_numbers = itertools.count()
_here = threading.local()


class Stream:
    """A stream; `held`: what comes before anything that it gets from now on."""

    def __init__(self, device=None):
        self.device, self.held = device, set()

    def wait_stream(self, other):
        self.held |= other.held

    def query(self):
        return True


@contextlib.contextmanager
def stream(inner):
    outer, _here.stream = current_stream(), inner
    try:
        yield
    finally:
        _here.stream = outer


def current_stream(device=None):
    """Every thread begins with a stream of its own."""
    if not hasattr(_here, "stream"):
        _here.stream = Stream(device)
    return _here.stream


def install(monkeypatch):
    for name, fake in (("Stream", Stream), ("stream", stream), ("current_stream", current_stream)):
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda x, s: None)


def work():
    """Puts something on the current stream and returns it."""
    current_stream().held.add(one := next(_numbers))
    return one


class Recorded:
    """A communicator whose collectives are recorded: `issued` are (name, what it comes behind, itself)."""

    def __init__(self, comm):
        self.real, self.issued = comm, []
        self.heap = {"size_bytes": 0}

    def __getattr__(self, name):
        return getattr(self.real, name)

    def _record(self, name, *args, async_op=False, **how):
        issuer, itself = current_stream(), next(_numbers)
        self.issued.append((name, set(issuer.held), itself))
        done = getattr(self.real, name)(*args, async_op=async_op, **how)
        if not async_op:
            issuer.held.add(itself)
            return done

        def wait(timeout=None):
            result = done.wait(timeout)
            issuer.held.add(itself)
            return result

        return SimpleNamespace(wait=wait, done=done.done)

    def all_reduce(self, *args, **how):
        return self._record("all_reduce", *args, **how)

    def all_gather(self, *args, **how):
        return self._record("all_gather", *args, **how)

    def reduce_scatter(self, *args, **how):
        return self._record("reduce_scatter", *args, **how)

    def reduce(self, *args, **how):
        return self._record("reduce", *args, **how)

    def broadcast(self, *args, **how):
        return self._record("broadcast", *args, **how)

    def since(self, count):
        """What was issued after so many collectives."""
        return self.issued[count:]
