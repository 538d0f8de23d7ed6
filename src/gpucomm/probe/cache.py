"""Figures of links, kept from one job to the next: a small file for each set of hosts."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import tempfile
import time
from pathlib import Path

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError
from gpucomm.probe.figures import Figures

__all__ = ["MAX_AGE_S", "folder", "is_writable", "kept", "load", "place", "store"]

MAX_AGE_S = 24 * 3600.0  # a virtual machine may have been given other cores since
_PREFIX = "links-"

_log = logging.getLogger("gpucomm")


def folder() -> Path | None:
    """Where figures are kept: GPUCOMM_CACHE, else the user's cache folder; None: nowhere ("off")."""
    wish = os.environ.get("GPUCOMM_CACHE", "")
    if wish == "off":
        return None
    if wish:
        return Path(wish)
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path(os.path.expanduser("~"), ".cache")) / "gpucomm"


def place(transport: str, nodes: tuple[int, ...], hosts: bytes) -> Path | None:
    """The file of these ranks, if any.

    Args:
        transport: of the communicator.
        nodes: the node of each rank.
        hosts: what tells the machines of the ranks from others.
    """
    where = folder()
    key = repr((_core.version, transport, nodes)).encode() + hosts
    return where and where / f"{_PREFIX}{hashlib.sha256(key).hexdigest()[:24]}.json"


def load(file: Path | None, transport: str, nodes: tuple[int, ...]) -> Figures | None:
    """What the file says, or None where there is none, it is old, or it is not ours."""
    if file is None:
        return None
    try:
        figures = Figures.from_json(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, InvalidArgumentError) as error:
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
        handle, draft = tempfile.mkstemp(dir=file.parent, prefix=_PREFIX, suffix=".draft")
        try:
            with open(handle, "w") as out:
                out.write(figures.to_json())
            os.replace(draft, file)
        except BaseException:
            os.unlink(draft)
            raise
    except OSError as error:
        _warn(file.parent, error.strerror)
        return
    with contextlib.suppress(OSError):  # another process removes them too
        for old in file.parent.glob(f"{_PREFIX}*"):
            if time.time() - old.stat().st_mtime > MAX_AGE_S:
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
    found = []
    with contextlib.suppress(OSError):
        found = [(file.stat().st_mtime, file) for file in where.glob(f"{_PREFIX}*.json")]
    return [file for _, file in sorted(found, reverse=True)]
