"""A device that throws whatever it is asked, as CUDA after an illegal access: nothing ends by it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import nccl_library
import numpy as np
import pytest
import rank_processes
from on_device import HostKit

import gpucomm
from gpucomm import errors

PATH = str(Path(__file__).parent)
SCRIPT = """
import os, time
import nccl_library
import numpy as np
from on_device import HostKit
import gpucomm

library = nccl_library.own() if "GPUCOMM_NCCL_LIBRARY" in os.environ else None
comm, kit = gpucomm.init(timeout=10), HostKit()
x, y = (kit.array(np.ones(3000)) for _ in range(2))
comm.all_reduce(x, async_op=True).synchronize()
comm.sendrecv(x, 1 - comm.rank, y, 1 - comm.rank, async_op=True).synchronize()
comm.barrier()
kit.device.break_down()
began = time.monotonic()
if comm.rank:
    comm.close()
assert time.monotonic() - began < 8
print("ended", flush=True)
"""


@pytest.fixture(params=["arena", "staged", "nccl"])
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if request.param == "nccl":
        return nccl_library.environment(tmp_path_factory)
    return {"PYTHONPATH": PATH, "GPUCOMM_DEVICE_TRANSPORT": request.param}


@pytest.mark.processes
def test_processes_end_by_themselves(environment: dict[str, str]) -> None:
    """One closes, the other only ends."""
    ranks = rank_processes.start(SCRIPT, [environment] * 2)
    said = [rank.communicate(timeout=60) for rank in ranks]
    assert [(rank.returncode, out) for rank, (out, _) in zip(ranks, said, strict=True)] == [
        (0, "ended\n")
    ] * 2, said


def test_a_message_of_the_host_is_not_begun_that_would_not_be_kept() -> None:
    """Else it would be written, when it came, to where something else lies by then."""
    kit, sent = HostKit(), threading.Event()

    def body(comm: gpucomm.Communicator) -> str:
        x = kit.array(np.ones(1000))
        comm.all_reduce(x) if comm.rank else comm.all_reduce(x, async_op=True).wait()  # whose array is kept
        while not (kit.host(x) == 2).all():  # what has been enqueued goes on when the device breaks down
            time.sleep(1e-3)
        made.wait(10)
        if comm.rank:
            broken.wait(10)
            comm.send(np.full(100, 9.0), 0)
            sent.set()
            return ""
        kit.device.break_down()
        x = np.zeros(100)
        with pytest.raises(errors.UnavailableError, match="it has broken down"):
            comm.recv(x, 1, async_op=True)
        broken.set()
        assert sent.wait(10)
        time.sleep(0.2)
        return "untouched" if (x == 0).all() else str(x[0])

    broken, made = threading.Event(), threading.Barrier(2)
    with gpucomm.local(2, threads=True) as world:
        assert world.run(body)[0] == "untouched"


def test_threads_end_by_themselves() -> None:
    kit = HostKit()

    def body(comm: gpucomm.Communicator) -> str:
        comm.all_reduce(kit.array(np.ones(3000)), async_op=True).synchronize()
        comm.barrier()
        kit.device.break_down()
        with pytest.raises(errors.UnavailableError, match=r"host device: .* failed: it has broken down"):
            comm.all_reduce(kit.array(np.ones(3000)))
        comm.close()
        return "closed"

    with gpucomm.local(2, threads=True) as world:
        assert world.run(body) == ["closed"] * 2
