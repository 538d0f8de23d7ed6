"""The device of the tests in tests/gpu: a GPU, whose arrays are torch's."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np

import gpucomm.cuda


def missing() -> str:
    """Why these tests cannot run; empty: they can."""
    if why := gpucomm.cuda.why_not():
        return why
    if importlib.util.find_spec("torch") is None:
        return "the tests make their arrays with torch, which is not installed"
    import torch

    return "" if torch.cuda.is_available() else "this build of torch cannot use CUDA"


def process_environment(**more: str) -> dict[str, str]:
    """What lets ranks that are processes run tests/device_ranks.py on the GPU."""
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"TEST_DEVICE": "cuda", "PYTHONPATH": os.pathsep.join(path), **more}


class CudaKit:
    """The first GPU; `deferred_us`: the stream that brings an array's values pauses before for so long."""

    def __init__(self, deferred_us: int = 0) -> None:
        self.device = gpucomm.cuda.device(0)
        self.deferred_us = deferred_us
        self._capturing: dict[int, Any] = {}

    def array(self, values: np.ndarray, dtype: str = "") -> Any:
        """Values as an array of this device; `dtype`: "bfloat16" where they are its bits."""
        import torch

        tensor = torch.from_numpy(values.copy())
        if dtype == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        tensor = tensor.cuda()
        torch.cuda.current_stream().synchronize()  # of all streams, this would wait for what others pause
        return tensor

    def host(self, array: Any) -> np.ndarray:
        """What is in an array once the device has done all its work."""
        import torch

        torch.cuda.synchronize()
        array = array.view(torch.uint16) if array.dtype == torch.bfloat16 else array
        return array.cpu().numpy()

    def address(self, array: Any) -> int:
        return array.data_ptr()

    def enqueued(self, kind: str) -> int | None:
        """Not counted."""
        return None

    def pause(self, stream: int) -> None:
        """The stream does nothing for a while."""
        import torch

        cycles_a_us = 1500
        if self.deferred_us:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
                torch.cuda._sleep(self.deferred_us * cycles_a_us)

    def begin_capture(self, stream: int) -> None:
        """What the stream gets from here on is kept for a graph."""
        import torch

        graph = self._capturing[stream] = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            graph.capture_begin(capture_error_mode="thread_local")

    def end_capture(self, stream: int) -> Any:
        """The graph; by the thread that began."""
        import torch

        graph = self._capturing.pop(stream)
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            graph.capture_end()
        return graph

    def launch(self, graph: Any, stream: int) -> None:
        import torch

        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            graph.replay()
