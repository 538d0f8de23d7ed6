"""Figures of links, kept from one job to the next: a small file for each set of hosts."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import time
from pathlib import Path

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError
from gpucomm.files import read_own, replace
from gpucomm.probe.figures import Figures

__all__ = ["MAX_AGE_S", "folder", "is_writable", "kept", "load", "place", "store"]

MAX_AGE_S = 24 * 3600.0  # a virtual machine may have been given other cores since
_OURS = re.compile(r"links-[0-9a-f]{24}\.(json|[a-z0-9_]{8}\.draft)")  # drafts are of `files.replace`
_MOST_BYTES, _MOST_PAIR_BYTES = 1 << 20, 128  # of a file, and for each pair of ranks in it

_log = logging.getLogger("gpucomm")


def folder() -> Path | None:
    """Where figures are kept: GPUCOMM_CACHE, else the user's cache folder; None: nowhere ("off", no home)."""
    wish = os.environ.get("GPUCOMM_CACHE", "")
    if wish == "off":
        return None
    if wish:
        return Path(wish)
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path(os.path.expanduser("~"), ".cache")
    return base / "gpucomm" if base.is_absolute() else None  # without a home "~" stays as it is


def place(transport: str, nodes: tuple[int, ...], hosts: bytes) -> Path | None:
    """The file of these ranks, if any.

    Args:
        transport: of the communicator.
        nodes: the node of each rank.
        hosts: what tells the machines of the ranks from others.
    """
    where = folder()
    key = repr((_core.version, transport, nodes)).encode() + hosts
    return where and where / f"links-{hashlib.sha256(key).hexdigest()[:24]}.json"


def load(file: Path | None, transport: str, nodes: tuple[int, ...]) -> Figures | None:
    """What the file says, or None where there is none, it is old, or it is not ours."""
    if file is None:
        return None
    try:
        most_bytes = _MOST_BYTES + _MOST_PAIR_BYTES * len(nodes) ** 2
        figures = Figures.from_json(read_own(file, most_bytes))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, InvalidArgumentError) as error:
        _log.warning("%s is not used, the links are measured again: %s", file, error)
        return None
    if (figures.transport, figures.nodes) != (transport, nodes):
        _log.warning("%s is not used, the links are measured again: it is of other ranks", file)
        return None
    # Another node's clock may be ahead.
    return figures if abs(time.time() - figures.measured_at) < MAX_AGE_S else None


def store(file: Path | None, figures: Figures) -> None:
    """Writes the file in one move, and removes what is too old to be used; that it cannot is a warning."""
    if file is None:
        return
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace(file, figures.to_json())
    except OSError as error:
        _warn(file.parent, error.strerror)
        return
    for written_at, old in _ours(file.parent):
        if time.time() - written_at > MAX_AGE_S:
            with contextlib.suppress(OSError):  # another process removes them too
                old.unlink()


@functools.cache  # once, however many communicators there are
def _warn(where: Path, why: str) -> None:
    _log.warning(
        "what is measured of the links is not kept in %s, so each job measures anew: %s (GPUCOMM_CACHE names"
        " another folder, or off)",
        where,
        why,
    )


def is_writable(where: Path) -> bool:
    """Whether figures can be kept in a folder, which may have to be made."""
    there = next(folder for folder in (where, *where.absolute().parents) if os.path.lexists(folder))
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)


def kept(where: Path) -> list[Path]:
    """The files in a folder, the latest first."""
    return [file for _, file in sorted(_ours(where), reverse=True) if file.suffix == ".json"]


def _ours(where: Path) -> list[tuple[float, Path]]:
    """What `store` has written there, drafts too, and when, in seconds since 1970; nobody else's files."""
    found = []
    with contextlib.suppress(OSError), os.scandir(where) as entries:
        for entry in entries:
            if _OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                found.append((entry.stat().st_mtime, Path(entry.path)))
    return found
