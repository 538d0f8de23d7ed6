"""The device of the tests in tests/emulated: a GPU that the CUDA extension finds in an emulated CUDA.

Its sources are compiled by the host's compiler, with their launches rewritten to calls of emulation.h.
Kernels run on streams that are those of the host device, thread block by thread block; under the thread
sanitizer four at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled import FLAGS, compiler
from on_device import check_readable
from once import once

import gpucomm
from gpucomm import _core

EMULATION = Path(__file__).parent / "cuda_emulation"
CPP = Path(__file__).parents[1] / "src" / "cpp"
# Of the host device, whose streams and events those of the emulated GPUs are.
SHARED = ["base/process.cpp"]
SHARED += [f"devices/{name}.cpp" for name in ("host_event", "host_graph", "shared_memory")]
# The sanitizer that tools/sanitize.sh has loaded into this process, where it lets the extension be built, and
# the environment without it.
SANITIZER = os.environ.get("GPUCOMM_SANITIZE")
BUILT = Path(os.environ["GPUCOMM_EMULATION"]) if "GPUCOMM_EMULATION" in os.environ else None
PLAIN = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
# As a GPU, a kernel stops where an address is no multiple of what it loads or stores there.
ALIGNED = ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
COMMON = ["algorithm", "atomic", "functional", "map", "memory", "mutex", "optional", "string", "thread"]
COMMON += ["vector", "cuda.h"]
LAUNCH = re.compile(r"(\w+)<<<(.*), (\w+), 0, stream>>>\(")
BOUNDS = re.compile(r"(__launch_bounds__\(([^(),]+)(?:, [^()]+)?\)\s+\w+\([^{]+\) \{)")
SHARED_MEMORY = re.compile(r"(__shared__ [^;]+ (\w+);)")


def cuda_headers() -> Path:
    """Where CUDA's headers are, as its compiler says; without one, or of CUDA 12, the test is skipped."""
    sys.path.append(str(CPP.parents[1] / "tools"))
    from cuda_gate import find_nvcc

    if not (nvcc := find_nvcc()):
        pytest.skip("no nvcc here, beside which CUDA's headers are")
    dry = [nvcc, "--dryrun", "-x", "cu", "-c", os.devnull]
    plan = subprocess.run(dry, capture_output=True, text=True, env=PLAIN)
    found = re.search(r'INCLUDES="-I([^"]+)"', plan.stderr)
    assert found, plan.stderr
    version = re.search(r"define CUDART_VERSION +(\d+)", (Path(found[1]) / "cuda_runtime_api.h").read_text())
    if not version or int(version[1]) < 13000:
        pytest.skip("the functions that are emulated are declared as those of CUDA 13")
    return Path(found[1])


def flags_of(headers: Path, folder: Path) -> list[str]:
    import pybind11  # which ranks of other interpreters may not have

    includes = [folder, EMULATION, CPP, headers, pybind11.get_include(), sysconfig.get_paths()["include"]]
    defines = [f'GPUCOMM_VERSION="{_core.version}"', 'GPUCOMM_ARCHITECTURES="emulated"']
    return [
        *FLAGS,
        "-O1",
        "-g1",
        "-fPIC",
        "-Wno-attributes",
        *(f"-I{path}" for path in includes),
        *(f"-D{define}" for define in defines),
        *(["-DEMULATED_RACES"] if SANITIZER == "thread" else []),
        "-include",
        str(EMULATION / "emulation.h"),
    ]


def rewritten(source: Path) -> str:
    """A source of the extension, which tells the emulation of what no function of CUDA does."""
    text = source.read_text()
    for there, sought, put in (
        ("<<<", LAUNCH, r"::emulated::launch(\1, \2, \3, stream, "),
        ("__launch_bounds__", BOUNDS, r"\1 ::emulated::bound(\2);"),
        ("__shared__", SHARED_MEMORY, r"\1 ::emulated::unwritten(&\2, sizeof \2);"),
    ):
        count = text.count(there)
        text, found = sought.subn(put, text)
        assert found == count, f"{there} in {source} is written in another way than the emulation knows"
    return text


def build(folder: Path, headers: Path) -> Path:
    """The extension, made in this folder; `headers`: where CUDA's are."""
    (folder / "cuda").mkdir(parents=True)
    for source in (CPP / "cuda").iterdir():
        (folder / "cuda" / source.name).write_text(rewritten(source))
    # First what takes longest, so that no processor waits at the end.
    named = folder / "named.cpp"  # pybind11 takes longer to read than what is made of it
    named.write_text(f'#include "{CPP}/bindings/bind_errors.cpp"\n#include "{folder}/cuda/module.cpp"\n')
    sources = [named, *(CPP / name for name in SHARED)]
    sources += [file for kind in ("cpp", "cu") for file in folder.glob(f"cuda/*.{kind}")]
    sources = [*(file for file in sources if file.name != "module.cpp"), *EMULATION.glob("*.cpp")]
    flags = flags_of(headers, folder)
    # vptr wants the core's type information
    watched = [f"-fsanitize={SANITIZER}", "-fno-sanitize=vptr", "-fno-sanitize-recover"] if SANITIZER else []

    # What nearly all include is compiled once: else it is a fourth of all.
    common = folder / "common.h"
    common.write_text('#include "emulation.h"\n' + "".join(f"#include <{name}>\n" for name in COMMON))
    command = [compiler(), *flags, *watched, "-x", "c++-header", common, "-o", f"{common}.gch"]
    subprocess.run(command, check=True, env=PLAIN)

    def compiled(source: Path) -> Path:
        made = folder / f"{source.name}.o"
        how = ["-include", common, *flags, *watched]
        if source.suffix == ".cu" and SANITIZER != "undefined":  # which says where
            how += ALIGNED
        if source.name == "blocks.cpp":  # who has the threads take turns
            how = flags
        command = [compiler(), *how, "-x", "c++", "-c", source, "-o", made]
        subprocess.run(command, check=True, env=PLAIN)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, sources))
    library = folder / f"_cuda{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run([compiler(), "-shared", *watched, *objects, "-o", library], check=True, env=PLAIN)
    return library


def load(library: Path) -> None:
    """Makes it the gpucomm._cuda of this process, which can no longer use the real one."""
    spec = importlib.util.spec_from_file_location("emulated._cuda", library)
    assert spec and spec.loader
    module = sys.modules["gpucomm._cuda"] = gpucomm._cuda = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    gpucomm.cuda.why_not.cache_clear()  # what it said of the real one
    EmulatedKit.library, EmulatedKit.path = ctypes.CDLL(str(library)), library


class Array:
    """An array of NumPy, of which DLPack says that it is on a GPU."""

    def __init__(self, values: np.ndarray, index: int, bfloat16: bool = False) -> None:
        self.values, self.index, self.bfloat16 = values, index, bfloat16
        if values.nbytes:
            library, at = EmulatedKit.library, ctypes.c_void_p(values.ctypes.data)
            library.emulated_own(at, ctypes.c_size_t(values.nbytes), index)
            weakref.finalize(values, library.emulated_disown, at).atexit = False

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.index

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self.values.__dlpack__()
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = address(capsule, b"dltensor")  # void* data; int32 device[2]; int32 ndim; uint8 code, bits
        ctypes.memmove(tensor + 8, np.array([2, self.index], np.int32).tobytes(), 8)
        if self.bfloat16:
            ctypes.memmove(tensor + 20, b"\x04", 1)
        return capsule

    def new_empty(self, shape: Any) -> Array:
        values = np.empty(shape, self.values.dtype)
        values.reshape(-1).view(np.uint8)[...] = 0xFF  # what nobody has written
        return Array(values, self.index, self.bfloat16)


Array.__module__ = "cupy"  # whose arrays may be written, though old DLPack cannot say so


class EmulatedKit:
    """An emulated GPU: index 0 and 2 are the first, 1 and 3 the second.

    `deferred_us`: streams made from here on start each piece of work after a pause of up to so long.
    """

    library: ctypes.CDLL  # the extension
    path: Path

    def __init__(self, deferred_us: int = 0, index: int = 0) -> None:
        self.library.emulated_defer(deferred_us)
        self.index = index % 2
        self.device = gpucomm.cuda.device(self.index)
        self.capturing: set[int] = set()

    @classmethod
    def limit(cls, most_bytes: int) -> None:
        """From here on CUDA gives no more memory at once."""
        cls.library.emulated_limit(ctypes.c_size_t(most_bytes))

    @classmethod
    @contextlib.contextmanager
    def failing(cls, function: str, error: int, spared: int = 0) -> Iterator[None]:
        """What calls this function of CUDA is given that error, after so many calls."""
        cls.library.emulated_fail(function.encode(), error, spared)
        try:
            yield
        finally:
            cls.library.emulated_fail(function.encode(), 0, 0)

    def array(self, values: np.ndarray, dtype: str = "") -> Array:
        return Array(np.array(values, order="C"), self.index, dtype == "bfloat16")

    def host(self, array: Array) -> np.ndarray:
        check_readable(self.capturing)
        return array.values

    def address(self, array: Array) -> int:
        return array.values.ctypes.data

    def enqueued(self, kind: str) -> int | None:
        """Not counted."""
        return None

    def pause(self, stream: int) -> None:
        """The stream does nothing for a while: it pauses by itself."""

    def begin_capture(self, stream: int) -> None:
        assert self.library.emulated_begin_capture(ctypes.c_void_p(stream)), "the stream cannot be captured"
        self.capturing.add(stream)

    def end_capture(self, stream: int) -> int:
        self.capturing.discard(stream)
        call = self.library.emulated_end_capture
        call.restype, call.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        graph = call(stream)
        assert graph, "the capture has failed"
        return graph

    def launch(self, graph: int, stream: int) -> None:
        self.library.emulated_launch(ctypes.c_void_p(graph), ctypes.c_void_p(stream))


def process_environment(**more: str) -> dict[str, str]:
    """What lets ranks that are processes run tests/device_ranks.py on an emulated GPU."""
    path = str(Path(__file__).parent)
    return {"TEST_DEVICE": str(EmulatedKit.path), "PYTHONPATH": path, **more}


@pytest.fixture(scope="session")
def emulated_kit(tmp_path_factory: pytest.TempPathFactory) -> type[EmulatedKit]:
    """The extension is built once, or by tools/sanitize.sh before, and loaded by each process of pytest."""
    headers = cuda_headers()
    if BUILT:
        library = next(BUILT.glob("_cuda*.so"), None) or build(BUILT, headers)
    else:
        library = once(tmp_path_factory, "emulated", lambda folder: build(folder, headers))
    load(library)
    return EmulatedKit


if __name__ == "__main__" and BUILT:
    with contextlib.suppress(pytest.skip.Exception):
        build(BUILT, cuda_headers())
