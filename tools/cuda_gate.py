"""Compiles the CUDA kernels and looks at what ptxas made of them: a kernel that spills registers fails.

Prints the registers of each kernel. Without nvcc it says so and passes, unless GPUCOMM_CUDA=ON.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "cpp" / "cuda").glob("*.cu"))
# The newest that runs the kernels most, and the oldest, from the PTX that every later GPU can take.
TARGETS = {"sm_90": "compute_90", "sm_75": "compute_75"}


@dataclass(frozen=True)
class Kernel:
    """What ptxas says of a function for one target."""

    name: str
    target: str
    registers: int
    stack_bytes: int
    spill_bytes: int


def find_nvcc() -> str | None:
    """As the build finds it."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    folders = [f"{home}/bin" for home in homes if home]
    path = os.pathsep.join([*folders, os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
    return os.environ.get("CUDACXX") or shutil.which("nvcc", path=path)


def compile_one(nvcc: str, source: Path) -> str:
    """What ptxas says; the code itself is thrown away."""
    flags = ["-std=c++20", "--fmad=false", "-Xptxas=-v", f"-I{ROOT / 'src' / 'cpp'}"]
    targets = [f"-gencode=arch={ptx},code={target}" for target, ptx in TARGETS.items()]
    command = [nvcc, *flags, *targets, "-fatbin", str(source), "-o", os.devnull]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{source.name} does not compile:\n{done.stderr}")
    return done.stderr + done.stdout


def kernels(log: str) -> Iterator[Kernel]:
    """Reads ptxas -v; a device function that is not inlined counts to the kernel it follows."""
    name, target, stack, spills = "", "", 0, 0
    for line in log.splitlines():
        if entry := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
            (name, target), stack, spills = entry.groups(), 0, 0
        elif frame := re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line
        ):
            stack, spills = stack + int(frame[1]), spills + int(frame[2]) + int(frame[3])
        elif used := re.search(r"Used (\d+) registers", line):
            yield Kernel(name, target, int(used[1]), stack, spills)


def readable(names: list[str]) -> list[str]:
    """Demangled, where the machine has c++filt, without what all have in common."""
    if shutil.which("c++filt"):
        text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
        names = text.stdout.splitlines()
    short = [name.replace("gpucomm::cuda::", "").replace("gpucomm::", "") for name in names]
    return [re.sub(r"^void |\([^()]*\)$", "", name) for name in short]


def main() -> None:
    """Compiles, prints, fails."""
    nvcc = find_nvcc()
    if nvcc is None:
        if os.environ.get("GPUCOMM_CUDA") == "ON":
            raise SystemExit("GPUCOMM_CUDA=ON, but there is no nvcc")
        print("no nvcc here: the kernels were not looked at")
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        logs = list(pool.map(lambda source: compile_one(nvcc, source), SOURCES))
    found = [kernel for log in logs for kernel in kernels(log)]
    if not found:
        raise SystemExit("ptxas told of no kernel: has its output changed?")
    spilling = []
    for kernel, name in zip(found, readable([kernel.name for kernel in found]), strict=True):
        line = f"{kernel.registers:4} registers {kernel.stack_bytes:5} B stack  {kernel.target}  {name}"
        print(line)
        if kernel.spill_bytes:
            spilling.append(f"{line}: {kernel.spill_bytes} bytes of spills")
    if spilling:
        raise SystemExit("kernels spill registers:\n" + "\n".join(spilling))
    print(f"{len(found)} kernels for {', '.join(TARGETS)}, none spills")


if __name__ == "__main__":
    main()
