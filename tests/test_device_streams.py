"""Which stream a call takes for an array that says to be a CUDA tensor of torch; no GPU is asked."""

from __future__ import annotations

import contextlib
import ctypes

import numpy as np
import pytest
import torch
from ranks import run_ranks

import gpucomm.cuda
from gpucomm import _core
from gpucomm.errors import InvalidArgumentError

INDEX = 1000  # of a GPU that no machine has


class AllocatedError(Exception):
    """Ends a call before it comes to a device."""


class Tensor:
    """By DLPack on a GPU; without the exchange table, as torch's before 2.10."""

    is_cuda, device = True, torch.device("cuda", INDEX)

    def __dlpack__(self, **_):
        capsule = np.ones(4, np.float32).__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        device = (ctypes.c_int32 * 2).from_address(pointer(capsule, b"dltensor") + 8)  # behind the data
        device[:] = 2, INDEX
        return capsule

    def new_empty(self, shape):
        raise AllocatedError


Tensor.__module__ = "torch"


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of that index: none, for no call gets so far that it would need one."""
    nothing = ctypes.create_string_buffer(16)  # a shared_ptr that is null
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    capsule = new(ctypes.addressof(nothing), b"gpucomm.Device", None)
    monkeypatch.setattr(gpucomm.cuda, "device", lambda index: _core.add_gpu(index, capsule))


@pytest.mark.parametrize("kind", [Tensor, type("Parameter", (Tensor,), {})])
def test_a_torch_that_does_not_tell_its_stream_is_refused_without_one(kind, gpu):
    def body(comm):
        with pytest.raises(InvalidArgumentError, match=r"2\.10 and later do\): pass stream="):
            comm.all_reduce(kind())

    run_ranks(1, body)


@pytest.mark.parametrize(
    ("stream", "on"), [(None, []), (0, ["default"]), (1, ["default"]), (4096, [("external", 4096)])]
)
@pytest.mark.parametrize("call", ["all_gather", "reduce_scatter", "all_to_all", "scatter", "lists"])
def test_results_are_allocated_for_the_stream_that_was_given(call, stream, on, monkeypatch):
    entered = []

    @contextlib.contextmanager
    def current(own):
        entered.append(own)
        yield

    monkeypatch.setattr(torch.cuda, "stream", current)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: "default")
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: ("external", handle))

    def body(comm):
        with pytest.raises(AllocatedError):
            if call == "lists":
                comm.all_gather([Tensor(), Tensor()], stream=stream)
            else:
                getattr(comm, call)(*([Tensor(), 0] if call == "scatter" else [Tensor()]), stream=stream)

    run_ranks(1, body)
    assert entered == on
