"""The file that --json names: what a command found, for machines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gpucomm.errors import InvalidArgumentError

__all__ = ["check_writable", "write_json"]


def check_writable(path: Path | None, option: str = "--json") -> None:
    """Find out before the work whether what it gives can be written there, not after it.

    Args:
        path: a file; None is fine.
        option: that named it, for the text.

    Raises:
        InvalidArgumentError: it cannot.
    """
    if path is None:
        return
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidArgumentError(f"{option} {str(path)!r} cannot be written")


def write_json(path: Path | None, value: Any) -> None:
    """Write a value as indented JSON.

    Args:
        path: the file; None: nothing is written.
        value: of what JSON has.

    Raises:
        InvalidArgumentError: the file cannot be written.
    """
    if path is None:
        return
    try:
        path.write_text(json.dumps(value, indent=1) + "\n")
    except OSError as error:
        raise InvalidArgumentError(f"--json {str(path)!r} cannot be written: {error}") from error
