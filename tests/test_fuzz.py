"""Every decoder on damaged streams and any bytes, under sanitizers: values or an Error, and nothing else.

The same streams in every run; tools/fuzz.sh looks for others, as long as one likes.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from codec_samples import CODECS
from compiled import program

ROOT = Path(__file__).parent.parent
STREAMS = 100
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def test_streams_are_decoded_or_refused(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path / "empty.cpp"
    empty.write_text("int main() {}\n")
    try:
        program(tmp_path_factory, "empty", [empty], SANITIZED)
    except subprocess.CalledProcessError:
        pytest.skip("the compiler has no sanitizers here")
    base = tmp_path / "base.cpp"
    base.write_text("".join(f'#include "{file}"\n' for file in (ROOT / "src/cpp/base").glob("*.cpp")))
    sources = [ROOT / "tests" / "fuzz" / "seeded.cpp", base, *(ROOT / "src/cpp/codecs").glob("*.cpp")]
    # Not optimised: to compile it takes longer than to run it.
    seeded = program(tmp_path_factory, "seeded", sources, ["-g1", *SANITIZED, f"-I{ROOT / 'src' / 'cpp'}"])
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run([seeded, str(STREAMS)], env=env, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert done.stdout.splitlines() == CODECS
