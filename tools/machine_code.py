"""Counts what a warp issues of a kernel, in machine code for sm_90: once through the loop that codes most.

    python tools/machine_code.py zfp 'recode_tiles<ZfpWord, (Kind)0>' --tiles 4

The loop is the shortest one that loads 16 bytes a lane as often as it takes tiles. What it jumps over, if
that is longer than a few instructions, is rare, and not counted. Needs nvcc and nvdisasm of
CUDA's toolkit.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from cuda_gate import ROOT, find_nvcc, readable

RARE = 24  # instructions
# What runs each instruction, by Nsight Compute's names. For a warp the ALU takes two cycles, as does the half
# of the FMA pipe that multiplies integers; the XU takes more.
PIPES = {
    "FMA": "FFMA FMUL FADD",
    "FMA, integers": "IMAD IDP",
    "XU": "FLO BREV F2I I2F POPC MUFU",
    "memory": "LDS STS LDG STG LDC ATOMG REDG",
    "control": "BRA BSSY BSYNC NOP WARPSYNC CALL RET EXIT VOTE YIELD",
}
PIPE_OF = {name: pipe for pipe, names in PIPES.items() for name in names.split()}


def assembly(source: str) -> str:
    """What nvdisasm makes of a .cu file of src/cpp/cuda."""
    path = ROOT / "src" / "cpp" / "cuda" / f"{source}.cu"
    nvcc = find_nvcc()
    if nvcc is None:
        raise SystemExit("there is no nvcc here")
    if not shutil.which("nvdisasm"):
        raise SystemExit("there is no nvdisasm in PATH; PyPI's nvidia-cuda-nvdisasm has it too")
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "code.cubin"
        flags = ["-std=c++20", "--fmad=false", "-gencode=arch=compute_90,code=sm_90", "-cubin"]
        subprocess.run([nvcc, *flags, f"-I{ROOT / 'src/cpp'}", path, "-o", code], check=True)
        return subprocess.run(["nvdisasm", "-c", code], check=True, capture_output=True, text=True).stdout


def instructions(text: str, kernel: str) -> tuple[list[str], dict[str, int]]:
    """Of the first kernel with `kernel` in its name as C++ writes it; and where its labels are."""
    parts = text.split("\n.text.")[1:]
    names = readable([part.split(":", 1)[0] for part in parts])
    part = next((part for part, name in zip(parts, names, strict=True) if kernel in name), None)
    if part is None:
        raise SystemExit(f"no kernel has {kernel!r} in its name; there are {', '.join(names)}")
    found: list[str] = []
    labels: dict[str, int] = {}
    for line in part.split("\n\t.section", 1)[0].splitlines():
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = len(found)
        elif code := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?) ;", line):
            found.append(code[1].strip())
    return found, labels


def target(code: str, labels: dict[str, int]) -> int | None:
    """Where a branch leads; None for what is none."""
    label = re.search(r"BRA\b.*?(\.L_x_\d+)", code)
    return labels[label[1]] if label else None


def walk(codes: list[str], labels: dict[str, int], tiles: int) -> list[str]:
    """What runs from the loop's begin to its end."""
    ends = [(to, at) for at, code in enumerate(codes) if (to := target(code, labels)) is not None and to < at]
    loops = [(at - to, to, at) for to, at in ends if loads(codes[to:at]) >= tiles]
    if not loops:
        raise SystemExit(f"no loop loads 16 bytes a lane {tiles} times")
    _, at, end = min(loops)
    path = []
    while at <= end:
        path.append(codes[at])
        to = target(codes[at], labels)
        jumps = to is not None and at < to <= end and (codes[at].startswith("BRA ") or to - at > RARE)
        at = to if jumps and to is not None else at + 1
    return path


def loads(codes: list[str]) -> int:
    """Of 16 bytes, but of constants."""
    return sum("LDG.E.128 " in code for code in codes)


def main() -> None:
    """Compiles, walks, counts."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("source", help="a .cu file of src/cpp/cuda, without its ending")
    parser.add_argument("kernel", help="a part of its name")
    parser.add_argument("--tiles", type=int, default=1, help="that the loop takes at a time")
    parser.add_argument("--list", action="store_true", help="print the instructions too")
    asked = parser.parse_args()
    path = walk(*instructions(assembly(asked.source), asked.kernel), asked.tiles)
    if asked.list:
        print("\n".join(path))
    names = [re.sub(r"^@!?U?P\d ", "", code).split()[0].split(".")[0] for code in path]
    counts = Counter(PIPE_OF.get(name, "uniform" if name.startswith("U") else "ALU") for name in names)
    for pipe, count in [("all", len(path)), *counts.most_common()]:
        print(f"{count / asked.tiles:8.2f} {pipe}")


if __name__ == "__main__":
    main()
