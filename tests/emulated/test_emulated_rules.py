"""What a GPU would refuse, or stop at, the emulated one does too."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from on_device import stream_of
from on_emulated import EmulatedKit, process_environment
from ranks import run_ranks

from gpucomm.errors import InvalidArgumentError, UnavailableError

UNSUPPORTED = 900
KERNELS = """
import numpy as np
from device_ranks import own
from on_device import finish
kits = [own(0, index) for index in range(2)]
x, y = (kit.array(np.ones(64)) for kit in kits)
host = np.ones(64)
def fold(*sources):
    kits[0].device.reduce("float64", "sum", [kits[0].address(x)], list(sources), 64, 1)
    finish(kits[0].device)
fold(kits[0].address(x), kits[0].address(x))
print("began", flush=True)
fold(kits[0].address(x), {other})
"""


@contextlib.contextmanager
def captured(kit):
    """A stream that is being captured, which then fails."""
    with stream_of(kit) as stream:
        kit.begin_capture(stream)
        yield stream
        with pytest.raises(AssertionError, match="the capture has failed"):
            kit.end_capture(stream)


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("function", ["cudaMalloc", "cudaHostAlloc", "cudaFree", "cudaFreeHost"])
def test_what_may_wait_is_refused_in_any_thread_beside_a_capture(emulated_kit, function, elsewhere):
    library, found = EmulatedKit.library, []

    def ask():
        library.emulated_make_current(0)
        makes = function in ("cudaMalloc", "cudaHostAlloc")
        arguments = [ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(8), 0] if makes else [None]
        found.append(getattr(library, function)(*arguments))
        library.emulated_make_current(-1)

    with captured(emulated_kit()):
        if elsewhere:
            thread = threading.Thread(target=ask)
            thread.start(), thread.join()
        else:
            ask()
    assert found == [UNSUPPORTED]


def test_a_capture_that_has_failed_takes_nothing_more(emulated_kit):
    kit = emulated_kit()
    event, x = kit.device.make_event(), kit.array(np.ones(3))
    with captured(kit) as stream:
        kit.device.record(event, stream)
        with pytest.raises(UnavailableError, match="a previous error during capture"):
            kit.device.done(event)
        for work in (lambda: kit.device.record(event, stream), lambda: fold(kit, x, stream)):
            with pytest.raises(UnavailableError, match="a previous error during capture"):
                work()

        def body(comm):
            with pytest.raises(InvalidArgumentError, match="the capture has failed: end it"):
                comm.all_reduce(x, stream=stream)

        run_ranks(1, body)
    kit.device.end_event(event)


def fold(kit, x, stream=0):
    kit.device.reduce("float64", "sum", [kit.address(x)], [kit.address(x)] * 2, 3, 1, stream)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("kits[1].address(y)", "memory of a GPU that its own has no access to"),
        ("host.ctypes.data", "memory is used that is no GPU's"),
        ("kits[0].address(x) + 1", "what is not aligned"),
        ("kits[0].device.copy(kits[0].address(x), host.ctypes.data, 8)", "memory is used that is no GPU's"),
    ],
)
def test_work_uses_only_what_its_gpu_may(emulated_kit, other, said):
    done = subprocess.run(
        [sys.executable, "-c", KERNELS.format(other=other)],
        env=os.environ | process_environment(),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "began\n") and said in done.stderr, done.stderr
