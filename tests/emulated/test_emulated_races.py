"""Built with the thread sanitizer the emulation finds races, and none where there is none."""

import signal
import subprocess
from pathlib import Path

import pytest
from compiled import compiler
from on_emulated import EMULATION, PLAIN, cuda_headers, flags_of

KERNELS = Path(__file__).parents[1] / "racing_kernels.cpp"
RACE = 66  # how the sanitizer ends a process
AT_ONCE = {"TSAN_OPTIONS": "atexit_sleep_ms=0"}  # else it waits a second for races of threads that go on


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("races")
    flags = [*flags_of(cuda_headers(), folder), "-DEMULATED_RACES"]
    subprocess.run(
        [compiler(), *flags, "-c", EMULATION / "blocks.cpp", "-o", folder / "blocks.o"], check=True, env=PLAIN
    )
    command = [
        compiler(),
        *flags,
        "-fsanitize=thread",
        KERNELS,
        folder / "blocks.o",
        "-o",
        folder / "kernels",
    ]
    if subprocess.run(command, env=PLAIN).returncode:
        pytest.skip("no thread sanitizer here")
    return folder / "kernels"


@pytest.mark.parametrize(
    ("name", "races"),
    [
        ("a barrier", False),
        ("a barrier of the warp", False),
        ("a shuffle", True),
        ("nothing", True),
        ("rows apart", False),
        ("rows that meet", True),
        ("atomic", False),
    ],
)
def test_races_are_found(kernels, name, races):
    done = subprocess.run([kernels, name], capture_output=True, text=True, env=PLAIN | AT_ONCE)
    assert done.returncode == (RACE if races else 0), done.stderr
    assert ("data race" in done.stderr) == races


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a part of the warp", "a shuffle of a part of the warp"),
        ("one that has left", "wait for others that do not come"),
        ("other places", "at different places"),
        ("too many threads", "more threads than it was compiled for"),
        ("what is left behind", ""),
    ],
)
def test_what_no_gpu_runs_ends_the_process(kernels, name, said):
    done = subprocess.run([kernels, name], capture_output=True, text=True, env=PLAIN | AT_ONCE)
    assert done.returncode == (-signal.SIGABRT if said else 0) and said in done.stderr, done.stderr
