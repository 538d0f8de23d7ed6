"""What CUDA refuses, as sentences; the process and other communicators go on."""

import ctypes

import emulated_ranks
import numpy as np
import pytest
from on_device import finish, stream_of
from on_emulated import EmulatedKit, process_environment
from ranks import run_ranks

import gpucomm
from gpucomm.errors import Error, InvalidArgumentError, UnavailableError

NO_DEVICE, NO_IMAGE, NO_ACCESS, REACHED, UNSUPPORTED, DEFAULT_STREAM = 100, 209, 700, 704, 801, 906


_kept = []  # what was enqueued before an error may still write them


def reduced(kits, **options):
    """What an all_reduce of two ranks says, on each."""

    def body(comm):
        x = kits[comm.rank % len(kits)].array(np.ones(4096, np.float32))
        _kept.append(x)
        try:
            return set(comm.all_reduce(x, async_op=True, **options).synchronize().values.tolist())
        except (UnavailableError, InvalidArgumentError) as error:
            return str(error)

    return run_ranks(2, body)


@pytest.mark.parametrize(
    ("function", "error", "texts"),
    [
        (
            "cudaLaunchKernel",
            NO_IMAGE,
            ["a kernel's launch failed: no kernel", "was built for architectures"],
        ),
        (
            "cudaEventQuery",
            NO_ACCESS,
            ["failed in earlier work: an illegal", "cannot use the device any more"],
        ),
        ("cudaStreamGetCaptureInfo", DEFAULT_STREAM, ["is CUDA's default stream", "pass stream="]),
    ],
)
def test_what_cuda_refuses_is_said(emulated_kit, function, error, texts):
    kits = [emulated_kit()]
    with EmulatedKit.failing(function, error):
        said = reduced(kits)
    assert any(one.startswith("cuda:0") and all(text in one for text in texts) for one in said), said
    assert reduced(kits) == [{2.0}] * 2  # of new ranks


def test_scratch_for_which_there_is_no_memory(emulated_kit):
    kits = [emulated_kit()]
    EmulatedKit.limit(100)
    said = reduced(kits, codec="int8")
    EmulatedKit.limit(1 << 30)
    assert any(
        "cuda:0: no memory for " in one and ": 100 of 1073741824 bytes are free" in one for one in said
    )
    assert reduced(kits) == [{2.0}] * 2


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("cudaDeviceCanAccessPeer", "cannot use the memory of cuda:"),
        ("cuPointerGetAttribute", "that is not cudaMalloc's other GPUs cannot use"),
    ],
)
def test_gpus_that_cannot_reach_each_other(emulated_kit, function, text):
    kits = [emulated_kit(0, index) for index in range(2)]
    with EmulatedKit.failing(function, UNSUPPORTED):
        for said in reduced(kits):
            assert text in said and "GPUCOMM_DEVICE_TRANSPORT=staged" in said
    assert reduced(kits) == [{2.0}] * 2


def test_gpus_that_reach_each_other_already(emulated_kit):
    """Another library has let them, which CUDA answers with an error: it is none, nor the next launch's."""
    kits = [emulated_kit(0, index) for index in range(2)]
    with EmulatedKit.failing("cudaDeviceEnablePeerAccess", REACHED):
        assert reduced(kits) == [{2.0}] * 2


def test_what_was_enqueued_in_part_is_waited_for(emulated_kit):
    """A launch fails behind another one, on the ranks' own stream: after close() that writes no array."""
    kit = emulated_kit(100_000)
    xs = [kit.array(np.ones(4096, np.float32)) for _ in range(3)]

    def body(comm):
        with pytest.raises(Error):
            comm.all_reduce(xs[comm.rank], stream=stream, algorithm="ring", segments=1)
        comm.close()
        return xs[comm.rank].values.copy()

    with stream_of(kit) as stream:
        with EmulatedKit.failing("cudaLaunchKernel", NO_IMAGE, 1):
            seen = run_ranks(3, body)
        finish(kit.device, stream)
    assert all(np.array_equal(x.values, values) for x, values in zip(xs, seen, strict=True))
    assert {1.0, 2.0} <= set(seen[0].tolist()) < {1.0, 2.0, 3.0}


@pytest.mark.parametrize(
    ("error", "text"),
    [(UNSUPPORTED, "operation not supported"), (DEFAULT_STREAM, "is CUDA's default stream")],
)
def test_an_error_is_told_once(emulated_kit, error, text):
    """CUDA keeps it for the thread, whose next launch would be said to have failed."""
    kit = emulated_kit()

    def body(comm):
        x = kit.array(np.ones(3))
        with (
            EmulatedKit.failing("cudaStreamGetCaptureInfo", error),
            pytest.raises((UnavailableError, InvalidArgumentError), match=text),
        ):
            comm.all_reduce(x)
        kit.device.reduce("float64", "sum", [kit.address(x)], [kit.address(x)] * 2, 3, 1)
        finish(kit.device)

    run_ranks(1, body)


def test_the_callers_gpu_stays_the_current_one(emulated_kit):
    kit, current = emulated_kit(0, 1), ctypes.c_int(-1)
    x = kit.array(np.ones(3))
    kit.device.reduce("float64", "sum", [kit.address(x)], [kit.address(x)] * 2, 3, 1)
    EmulatedKit.library.cudaGetDevice(ctypes.byref(current))
    assert current.value == 0
    finish(kit.device)


def test_a_stream_of_another_gpu(emulated_kit):
    kits = [emulated_kit(0, index) for index in range(2)]

    def body(comm):
        x = kits[0].array(np.ones(3))
        with stream_of(kits[1]) as away, pytest.raises(InvalidArgumentError, match="not one of cuda:0"):
            comm.all_reduce(x, stream=away)

    run_ranks(1, body)


@pytest.mark.processes
def test_an_arena_for_which_there_is_no_memory(emulated_kit):
    """There is some for what ranks try first."""
    with gpucomm.local(2, env=process_environment()) as world:
        first, second = world.run(emulated_ranks.first_call, 4 << 20)
    assert "no memory for 16777216 bytes: 4194304 of" in second and "GPUCOMM_ARENA_MIB=32 (rank 1" in second
    assert "rank 1" in first


@pytest.mark.processes
@pytest.mark.parametrize("function", ["cudaIpcGetMemHandle", "cudaIpcOpenMemHandle"])
def test_a_gpu_that_shares_no_memory_goes_through_host_memory(emulated_kit, function):
    with gpucomm.local(2, env=process_environment()) as world:
        found = world.run(emulated_ranks.ways, function, UNSUPPORTED)
    assert found == ["on a device through host memory"] * 2


def test_gpus_that_are_not_there(emulated_kit):
    with pytest.raises(UnavailableError, match="no device cuda:2: this process sees 2 GPUs, counted from 0"):
        gpucomm.cuda.device(2)
    from gpucomm import _cuda

    with EmulatedKit.failing("cudaGetDeviceCount", NO_DEVICE):
        assert "sees no GPU" in _cuda.unavailable()
    assert not _cuda.unavailable()
