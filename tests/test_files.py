"""Files in shared folders: what others put there is neither followed, waited for, believed nor removed."""

from __future__ import annotations

import json
import logging
import os
import pwd
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpucomm import files, flight
from gpucomm.doctor import host
from gpucomm.errors import InvalidArgumentError
from gpucomm.probe import cache
from gpucomm.probe.figures import Figures

APART = np.array([[np.nan, 1e-6], [1e-6, np.nan]])
KNOWN = Figures("shm", (0, 0), APART, APART, APART, {"reduce": 1e-11})
NAME = f"links-{'0123456789ab' * 2}.json"


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to(path.with_name("precious"))


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _long(path: Path) -> None:
    path.write_text(" " * (2 << 20))


def _binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")


PLANTED = [_fifo, _link, _endless, _long, _binary]


@pytest.mark.parametrize("plant", PLANTED)
def test_what_is_planted_is_a_warning_and_replaced(
    plant: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, precious = tmp_path / NAME, tmp_path / "precious"
    precious.write_text(KNOWN.to_json())
    plant(file)
    with caplog.at_level(logging.WARNING, "gpucomm"):
        assert cache.load(file, "shm", (0, 0)) is None
    assert f"{file} is not used, the links are measured again: " in caplog.text
    cache.store(file, KNOWN)
    assert not file.is_symlink()
    found = cache.load(file, "shm", (0, 0))
    assert found is not None and found.to_json() == precious.read_text() == KNOWN.to_json()


def test_a_file_of_another_user_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_text("text")
    assert files.read_own(tmp_path / "x", 4) == "text"
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(InvalidArgumentError, match=f"it belongs to user {own}, it must be of user {own + 1}"):
        files.read_own(tmp_path / "x", 4)


def test_the_figures_of_many_ranks_are_short_enough(tmp_path: Path) -> None:
    table = np.random.default_rng(0).random((200, 200))
    many = Figures("shm", (0,) * 200, table, table, table, {"reduce": 1e-11})
    cache.store(tmp_path / NAME, many)
    assert (tmp_path / NAME).stat().st_size > 2 << 20
    assert cache.load(tmp_path / NAME, "shm", many.nodes) is not None


def test_only_what_the_cache_wrote_is_removed(tmp_path: Path) -> None:
    own = [NAME.replace("0", "f"), NAME.replace(".json", ".abc_1234.draft")]
    others = ["links-of-my-thesis.txt", "links-.json", "links-x.draft", f"my{NAME}", f"{NAME}.txt"]
    folder = NAME.replace("0", "e")
    (tmp_path / folder).mkdir()
    for name in own + others:
        (tmp_path / name).touch()
    old = time.time() - cache.MAX_AGE_S - 1
    for name in [*own, *others, folder]:
        os.utime(tmp_path / name, (old, old))
    cache.store(tmp_path / NAME, KNOWN)
    assert sorted(os.listdir(tmp_path)) == sorted([*others, folder, NAME])
    assert cache.kept(tmp_path) == [tmp_path / NAME]


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUCOMM_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    assert cache.folder() is None
    (finding,) = host.LOOKS["measured links"]("measured links")
    assert not finding.on and finding.why.startswith("there is no home folder")


@pytest.mark.parametrize("plant", [_fifo, _link])
def test_a_flight_log_replaces_what_is_planted(
    plant: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCOMM_FLIGHT_DIR", str(tmp_path))
    precious = tmp_path / "precious"
    precious.write_text("mine")
    plant(tmp_path / f"gpucomm-flight-{os.getpid()}-rank0-of2.json")
    path = flight.dump([], 0, 2, 0, "boom")
    assert path is not None and json.loads(path.read_text())["error"] == "boom"
    assert path.stat().st_mode & 0o777 == 0o600
    assert precious.read_text() == "mine"


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written whole is not there at all; a limit of the process is as good as a full disk."""
    monkeypatch.setenv("GPUCOMM_FLIGHT_DIR", str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.warns(RuntimeWarning, match="no flight log of rank 0 of 2: .* File too large"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
        try:
            assert flight.dump([], 0, 2, 0, "boom") is None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
