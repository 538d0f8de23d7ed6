"""The `gpucomm` command from outside: signals, a full disk, and what it leaves behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpucomm import cli, doctor

COMMAND = [sys.executable, "-m", "gpucomm"]


@pytest.mark.processes
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("name", ["bench", "explain"])
def test_a_signal_ends_a_measurement_that_leaves_nothing(
    name: str, signum: signal.Signals, code: int, tmp_path: Path
) -> None:
    many = ["--sizes", "16M", "--repeats", "1000"] if name == "bench" else ["--bytes", "64M", "--ranks", "4"]
    pipe = subprocess.PIPE
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*COMMAND, name, "all_reduce", *many], env=environ, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while not list(tmp_path.glob("gpucomm-bench-*")) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert process.poll() is None
            process.send_signal(signum)
            said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, *said) == (code, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_ctrl_c_is_no_traceback(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(module: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.importlib, "import_module", interrupted)
    assert cli.main([name]) == 130
    assert capsys.readouterr() == ("", "")


def test_too_little_memory_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def greedy(module: str) -> None:
        raise MemoryError("Unable to allocate 8.00 TiB")

    monkeypatch.setattr(cli.importlib, "import_module", greedy)
    assert cli.main(["bench"]) == 1
    assert capsys.readouterr() == ("", "gpucomm bench: no memory: Unable to allocate 8.00 TiB\n")


def test_sigterm_is_ours_only_while_a_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(args: object) -> int:
        seen.append(signal.getsignal(signal.SIGTERM))
        return 0

    monkeypatch.setattr(doctor, "main", look)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert cli.main(["doctor"]) == 0
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        thread = threading.Thread(target=cli.main, args=(["doctor"],))
        thread.start()
        thread.join()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert cli.main(["doctor"]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen[0] not in (signal.SIG_DFL, signal.SIG_IGN)
    assert seen[1:] == [signal.SIG_DFL, signal.SIG_IGN]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "\udcff", "--algorithm", "ring"], "collective '\\udcff' must be UTF-8 text"),
        (["plan", "all_reduce", "--algorithm", "\udcff"], "algorithm '\\udcff' must be UTF-8 text"),
        (["explain", "all_reduce", "--codec", "\udcff"], "codec '\\udcff' must be UTF-8 text"),
        (
            ["plan", "broadcast", "--algorithm", "ring", "--root", "9" * 20],
            f"root {'9' * 20} must be from -2^31",
        ),
        (
            ["bench", "all_reduce", "--repeats", f"{1 << 31}"],
            f"repeats {1 << 31} must be from -2^31 to 2^31 - 1",
        ),
    ],
)
def test_what_the_core_cannot_take_is_a_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"gpucomm {arguments[0]}: {words}")


def test_files_may_have_any_name(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["flight", "/nowhere/\udcff"]) == 2
    assert "No such file" in capfd.readouterr().err


def test_microseconds_are_told_in_ascii_too(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    output = io.TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    assert cli.main(["plan", "all_reduce", "--algorithm", "ring", "--bytes", "1K"]) == 0
    assert b" \\xb5s" in raw.getvalue()
    assert output.errors == "strict", "it is the caller's"


@pytest.mark.processes
@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "all_reduce", "--algorithm", "ring"],
        ["run", "-n", "1", "--tag-output", "--no-python", "echo", "hi"],
    ],
)
def test_a_closed_output_is_no_error(arguments: list[str]) -> None:
    command = ["sh", "-c", 'exec "$0" "$@" >&-', *COMMAND, *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.processes
@pytest.mark.parametrize(
    "arguments", [["plan", "all_reduce", "--algorithm", "ring"], ["doctor"], ["--version"]]
)
def test_a_full_disk_is_a_sentence(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    said = f"gpucomm {arguments[0]}: [Errno 28] No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)
