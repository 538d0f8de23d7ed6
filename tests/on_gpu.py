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
    """A GPU: of this index, or where there are fewer, one of them.

    `deferred_us`: the stream that brings an array's values pauses before for so long.
    """

    def __init__(self, deferred_us: int = 0, index: int = 0) -> None:
        import torch

        self.index = index % torch.cuda.device_count()
        self.device = gpucomm.cuda.device(self.index)
        self.deferred_us = deferred_us
        self._capturing: dict[int, Any] = {}

    def array(self, values: np.ndarray, dtype: str = "") -> Any:
        """Values as an array of this device; `dtype`: "bfloat16" where they are its bits."""
        import torch

        tensor = torch.from_numpy(values.copy())
        if dtype == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        tensor = tensor.cuda(self.index)
        # of all streams, this would wait for what others pause
        torch.cuda.current_stream(self.index).synchronize()
        return tensor

    def host(self, array: Any) -> np.ndarray:
        """What is in an array once the device has done all its work."""
        import torch

        torch.cuda.synchronize(self.index)
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
            with self._on(stream):
                torch.cuda._sleep(self.deferred_us * cycles_a_us)

    def _on(self, stream: int) -> Any:
        import torch

        return torch.cuda.stream(torch.cuda.ExternalStream(stream, self.index))

    def begin_capture(self, stream: int) -> None:
        """What the stream gets from here on is kept for a graph."""
        import torch

        graph = self._capturing[stream] = torch.cuda.CUDAGraph()
        with self._on(stream):
            graph.capture_begin(capture_error_mode="thread_local")

    def end_capture(self, stream: int) -> Any:
        """The graph; by the thread that began."""

        graph = self._capturing.pop(stream)
        with self._on(stream):
            graph.capture_end()
        return graph

    def launch(self, graph: Any, stream: int) -> None:

        with self._on(stream):
            graph.replay()
