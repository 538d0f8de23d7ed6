"""What a device computes and how fast its ranks exchange, each against its floor: a copy of the same traffic.

    python benchmarks/device.py --json benchmarks/results/h200.json      # the first GPU
    python benchmarks/device.py --device host --mib 1 --repeats 3        # no GPU: only shows that it works

Each figure is a median of repetitions in turns, with buffers rotated so that no cache holds them. `of_floor`
is the time that a copy of the same traffic (bytes read plus bytes written) takes here over the kernel's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gpucomm
from gpucomm import _core

CODECS = {"bf16": 2.0, "fp16": 2.0, "fp8_e4m3": 1.0, "int8": 1.0, "int4": 0.5, "zfp:8": 1.0}
ROTATED = 3  # sets of buffers
_INPUTS = 8
_RESULT, _SLOT = _INPUTS, _INPUTS + 1


@dataclass(frozen=True)
class Row:
    """A measurement.

    Attributes:
        name: what ran.
        traffic_bytes: read plus written, at the least.
        time_us: the median.
        GBps: traffic over time.
        of_floor: the time of a copy of that traffic over `time_us`; 1 is the floor.
        host_us: what enqueuing took, of collectives.
    """

    name: str
    traffic_bytes: int
    time_us: float
    GBps: float
    of_floor: float
    host_us: float | None = None


class Host:
    """Threads in place of a GPU: shows that this program works."""

    name = "host device"

    def __init__(self) -> None:
        self.device = _core.HostDevice()

    def free_bytes(self) -> int:
        """Of the machine's memory."""
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

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
        return {"machine": platform.platform()}


class Cuda:
    """The first GPU; torch makes the arrays and the events that tell times."""

    _PAUSE = 2_000_000  # cycles, about a millisecond

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
        compiled = self.torch.compile(encode)
        try:
            compiled(arrays[0])
        except Exception as error:  # it needs a compiler, and Triton
            print(f"torch.compile: {str(error).strip().splitlines()[0]}")
            return
        yield "torch.compile", lambda address: compiled(at[address])

    def versions(self) -> dict[str, str]:
        """Of what the figures depend on."""
        from gpucomm import _cuda

        return {
            "machine": platform.platform(),
            "gpu": self.name,
            "driver": str(_cuda.driver_version()),
            "runtime": str(_cuda.runtime_version()),
            "torch": self.torch.__version__,
        }


class Bench:
    """Runs things in turns with the copy that is their ceiling."""

    def __init__(self, place: Any, nbytes: int, repeats: int) -> None:
        self.place, self.count, self.repeats = place, nbytes // 4, repeats
        # inputs of folds and codings, which nothing writes; then a result, and a coded message
        self.sets = [[place.floats(self.count) for _ in range(_INPUTS + 2)] for _ in range(ROTATED)]
        self.ceiling = statistics.median(self._copy(i) for i in range(repeats))

    def _copy(self, turn: int) -> float:
        """Bytes a second of a copy, read plus written."""
        at = self._addresses(turn)
        seconds = self.place.timed(lambda: self.place.device.copy(at[_RESULT], at[0], 4 * self.count))
        return 2 * 4 * self.count / seconds

    def _addresses(self, turn: int) -> list[int]:
        return [self.place.address(x) for x in self.sets[turn % ROTATED]]

    def row(self, name: str, traffic: int, work: Callable[[list[int]], object]) -> Row:
        """Measures what `work` enqueues on the addresses of a set of buffers."""
        ceilings, times = [], []
        for turn in range(self.repeats + 1):
            addresses = self._addresses(turn)
            ceilings.append(self._copy(turn))
            times.append(self.place.timed(lambda places=addresses: work(places)))
        seconds, ceiling = statistics.median(times[1:]), statistics.median(ceilings[1:])
        rate = traffic / seconds
        return Row(name, traffic, seconds * 1e6, rate * 1e-9, rate / ceiling)

    def kernels(self) -> Iterator[Row]:
        """Folds, sums of squares and codings, one by one."""
        for dtype, width in (("float32", 4), ("bfloat16", 2)):
            for k in (2, 4, 8):
                yield self._fold(dtype, width, k)
        yield from self._squares()
        for spec, width in CODECS.items():
            yield from self._codings(spec, 4 * self.count, int(self.count * width))
        for name, encode in self.place.int8_of_torch([arrays[0] for arrays in self.sets]):
            yield self.row(f"encode int8, {name}", 5 * self.count, lambda at, run=encode: run(at[0]))

    def _fold(self, dtype: str, width: int, k: int) -> Row:
        count = 4 * self.count // width

        def work(at: list[int]) -> None:
            self.place.device.reduce(dtype, "sum", [at[_RESULT]], at[:k], count)

        return self.row(f"reduce {k} x {dtype}", (k + 1) * 4 * self.count, work)

    def _squares(self) -> Iterator[Row]:
        device, n, blocks = self.place.device, self.count, 1 + 4 + 128  # those of the codecs

        def norms(at: list[int]) -> None:
            device.add_squares("float32", at[0], n, at[_SLOT], blocks)

        def losses(at: list[int]) -> None:
            device.add_squares("float32", at[0], n, at[_SLOT], became=at[1])

        yield self.row("norms of float32", 4 * n, norms)
        yield self.row("losses of float32", 2 * 4 * n, losses)

    def _codings(self, spec: str, dense: int, coded: int) -> Iterator[Row]:
        device, n = self.place.device, self.count

        def encode(at: list[int]) -> None:
            device.encode(spec, "float32", at[0], n, at[_SLOT])

        def decode(at: list[int], adds: bool = False) -> None:
            device.decode(spec, "float32", at[_SLOT], at[_RESULT], n, adds)

        yield self.row(f"encode {spec}", dense + coded, encode)
        for turn in range(ROTATED):
            encode(self._addresses(turn))
        yield self.row(f"decode {spec}", dense + coded, decode)
        yield self.row(f"decode {spec} and add", 2 * dense + coded, lambda at: decode(at, True))

        def fused(at: list[int]) -> None:
            device.decode_add_encode(spec, "float32", at[_SLOT], at[0], n, at[_RESULT])

        yield self.row(f"decode {spec}, add and encode", dense + 2 * coded, fused)

    def collectives(self) -> Iterator[Row]:
        """Ranks as threads on one device."""
        for world in (2, 4, 8):
            traffic = 2 * world * 4 * self.count
            if world > 2:
                yield from self._all_reduce(world, traffic, "direct", segments=1)
                yield from self._all_reduce(world, traffic, "ring")
                yield from self._all_gather(world, "int4")
            yield from self._all_reduce(world, traffic, "linear_pipeline", segments=8)

    def _all_reduce(self, world: int, traffic: int, algorithm: str, **how: Any) -> Iterator[Row]:
        arrays = self.sets[0][:world]

        def call(comm: gpucomm.Communicator, stream: int | None) -> None:
            comm.all_reduce(arrays[comm.rank], "mean", algorithm=algorithm, stream=stream, **how)

        yield from self._calls(f"all_reduce {algorithm}, {world} ranks", world, traffic, call)

    def _all_gather(self, world: int, codec: str) -> Iterator[Row]:
        """Each rank encodes its part and decodes all of them; what is forwarded in between is not counted."""
        part = self.count // world
        parts = [self.place.floats(part) for _ in range(world)]
        arrays = [self.place.floats(part * world) for _ in range(world)]
        coded = int(part * CODECS[codec])

        def call(comm: gpucomm.Communicator, stream: int | None) -> None:
            comm.all_gather(parts[comm.rank], out=arrays[comm.rank], codec=codec, stream=stream)

        traffic = world * (4 * part + coded + world * (coded + 4 * part))
        yield from self._calls(f"all_gather {codec}, {world} ranks", world, traffic, call)

    def _calls(
        self, name: str, world: int, traffic: int, call: Callable[[gpucomm.Communicator, int | None], None]
    ) -> Iterator[Row]:
        """A collective as it is called, and launched as a graph."""
        region = _core.Region(world)
        comms = [gpucomm.Communicator("local", rank, world, region=region) for rank in range(world)]
        with ThreadPoolExecutor(world) as pool:

            def together(stream: int | None = None) -> None:
                list(pool.map(lambda comm: call(comm, stream), comms))

            yield self._enqueued(name, traffic, together)
            yield self._enqueued(f"{name}, graph", traffic, self.place.captured(together))
        for comm in comms:
            comm.close()

    def _enqueued(self, name: str, traffic: int, enqueue: Callable[[], None]) -> Row:
        """A row that tells what enqueuing takes too."""
        host: list[float] = []

        def work(_: list[int]) -> None:
            begun = time.perf_counter()
            enqueue()
            host.append(time.perf_counter() - begun)

        row = self.row(name, traffic, work)
        return Row(**{**asdict(row), "host_us": statistics.median(host[1:]) * 1e6})


def measured(place: Any, mib: int, repeats: int) -> dict[str, Any]:
    """Prints the table of one size; what the file has of it."""
    buffers = 2 * ROTATED * (_INPUTS + 2)  # and what the calls hold
    if place.free_bytes() < buffers * mib << 20:
        print(f"{place.name}: no room for {buffers} buffers of {mib} MiB")
        return {"mib": mib, "rows": []}
    bench = Bench(place, mib << 20, repeats)
    print(f"{place.name}: a copy of {mib} MiB moves {bench.ceiling * 1e-9:.0f} GB/s (read plus written)")
    rows = []
    for row in (*bench.kernels(), *bench.collectives()):
        rows.append(asdict(row))
        host = "" if row.host_us is None else f"  host {row.host_us:8.1f} us"
        print(f"{row.name:<44} {row.time_us:10.1f} us {row.GBps:8.1f} GB/s {row.of_floor:6.2f}{host}")
    return {"mib": mib, "copy_GBps": bench.ceiling * 1e-9, "rows": rows}


def main() -> None:
    """Measure, print a table, write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda")
    sizes = {"type": int, "nargs": "+", "default": [256, 1024], "metavar": "N"}
    parser.add_argument("--mib", **sizes, help="MiB of a buffer (default: 256 1024)")
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="repetitions (default: 15)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write versions and rows there")
    args = parser.parse_args()
    place = Cuda() if args.device == "cuda" else Host()
    about: dict[str, Any] = {"versions": place.versions(), "sizes": []}
    for mib in args.mib:
        about["sizes"].append(measured(place, mib, args.repeats))
        if args.json:  # so far, for what may be ended before its end
            args.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
