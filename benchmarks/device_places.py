"""Where benchmarks/device.py runs: the first GPU, or threads in place of one."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpucomm import _core


def machine() -> str:
    """What the host is."""
    return f"{platform.system()} on {platform.machine()}, {len(os.sched_getaffinity(0))} cores"


class Host:
    """Threads in place of a GPU: shows that this program works."""

    name = "host device"

    def __init__(self) -> None:
        self.device = _core.HostDevice()

    def free_bytes(self) -> int:
        """Of the machine's memory."""
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def synchronize(self) -> None:
        """Waits for all that the default stream holds."""
        self.timed(lambda: None)

    def floats(self, count: int) -> Any:
        """An array of random float32."""
        return self.device.array(np.random.default_rng(count).standard_normal(count).astype(np.float32))

    def address(self, array: Any) -> int:
        """Of its first element."""
        return int(array.values.ctypes.data)

    def timed(self, work: Callable[[], None]) -> float:
        """Seconds from the first to the last of what `work` enqueues on the default stream."""
        event = self.device.make_event()
        begun = time.perf_counter()
        work()
        self.device.record(event)
        while not self.device.done(event):
            time.sleep(1e-5)
        self.device.end_event(event)
        return time.perf_counter() - begun

    def captured(self, work: Callable[[int], None]) -> Callable[[], None]:
        """What launches, as one graph, what `work` enqueues on the stream that it is given."""
        stream = self.device.make_stream()
        self.device.begin_capture(stream)
        work(stream)
        graph = self.device.end_capture(stream)
        self.device.end_stream(stream)
        return lambda: self.device.launch(graph, 0)

    def int8_of_torch(self, arrays: list[Any]) -> Iterator[tuple[str, Callable[[int], object]]]:
        """None: torch's are of GPUs."""
        yield from ()

    def versions(self) -> dict[str, str]:
        """Of what the figures depend on."""
        return {"machine": machine()}


class Cuda:
    """The first GPU; torch makes the arrays and the events that tell times."""

    _PAUSE = 10_000_000  # cycles, about 5 ms: as long as eight ranks take to enqueue a call

    def __init__(self) -> None:
        import torch

        import gpucomm.cuda

        if why := gpucomm.cuda.why_not():
            raise SystemExit(f"no GPU: {why}")
        self.device = gpucomm.cuda.device(0)
        self.torch = torch
        self.name = torch.cuda.get_device_name(0)

    def free_bytes(self) -> int:
        """Of the device's memory."""
        self.torch.cuda.empty_cache()
        return int(self.torch.cuda.mem_get_info()[0])

    def synchronize(self) -> None:
        """Waits for all that the device has to do."""
        self.torch.cuda.synchronize()

    def floats(self, count: int) -> Any:
        """An array of random float32."""
        return self.torch.randn(count, device="cuda")

    def address(self, array: Any) -> int:
        """Of its first element."""
        return int(array.data_ptr())

    def timed(self, work: Callable[[], None]) -> float:
        """Seconds from the first to the last of what `work` enqueues on the default stream."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda.synchronize()
        self.torch.cuda._sleep(self._PAUSE)  # else the GPU would wait for the host between begin and work
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    def captured(self, work: Callable[[int], None]) -> Callable[[], None]:
        """What launches, as one graph, what `work` enqueues on the stream that it is given."""
        graph, stream = self.torch.cuda.CUDAGraph(), self.torch.cuda.Stream()
        with self.torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            work(stream.cuda_stream)
        return graph.replay  # type: ignore[no-any-return]

    def int8_of_torch(self, arrays: list[Any]) -> Iterator[tuple[str, Callable[[int], object]]]:
        """What encodes the array at an address as blocks of int8 and their scales."""

        def encode(x: Any) -> Any:
            blocks = x.view(-1, 128)
            scales = blocks.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
            return (blocks / scales).round().to(self.torch.int8), scales

        at = {self.address(x): x for x in arrays}
        yield "eager torch", lambda address: encode(at[address])
        compiled = self.torch.compile(encode, dynamic=False)
        try:
            compiled(arrays[0])
        except Exception as error:  # it needs a compiler, and Triton
            print(f"torch.compile: {error!r:.500}")
            return
        yield "torch.compile", lambda address: compiled(at[address])

    def versions(self) -> dict[str, str]:
        """Of what the figures depend on."""
        from gpucomm import _cuda, nccl

        return {
            "architectures": _cuda.architectures(),
            "nccl": nccl.why_not() or nccl.load().version,
            "machine": machine(),
            "gpu": self.name,
            "driver": str(_cuda.driver_version()),
            "runtime": str(_cuda.runtime_version()),
            "torch": self.torch.__version__,
        }
