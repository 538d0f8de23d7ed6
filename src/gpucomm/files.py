"""Small files in folders that others may write too: what they put there is not followed nor waited for.

And folders of our own among them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpucomm.errors import InvalidArgumentError

__all__ = ["own_folder", "read_own", "read_regular", "replace"]


def read_own(path: Path, most_bytes: int) -> str:
    """The text of a regular file of this user.

    Args:
        path: of the file.
        most_bytes: how long it may be.

    Raises:
        OSError: it cannot be opened or read, or is a link.
        InvalidArgumentError: it is no regular file, another user's, too long, or no UTF-8.
    """
    return _read(path, most_bytes, os.O_NOFOLLOW, os.geteuid())


def read_regular(path: Path, most_bytes: int) -> str:
    """As `read_own`, of a file that the user names: whoever has it, and over links too."""
    return _read(path, most_bytes, 0, None)


def _read(path: Path, most_bytes: int, how: int, user: int | None) -> str:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | how  # a FIFO would wait for a writer
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise InvalidArgumentError("it must be a regular file")
        if user is not None and about.st_uid != user:
            raise InvalidArgumentError(f"it belongs to user {about.st_uid}, it must be of user {user}")
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise InvalidArgumentError(f"it must have at most {most_bytes} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"it is no UTF-8 text: {error}") from None


def replace(path: Path, text: str) -> None:
    """Writes a file that only this user can read, in one move, in place of what has its name by now.

    Raises:
        OSError: it cannot be written; then nothing is left of it.
    """
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}.", suffix=".draft")
    try:
        with open(handle, "w", encoding="utf-8") as out:
            out.write(text)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


@contextlib.contextmanager
def own_folder(prefix: str) -> Iterator[str]:
    """A new folder in that for temporary files, which is removed in the end.

    Whenever a signal's handler raises: tempfile.TemporaryDirectory leaves one that was made just then.

    Raises:
        OSError: it cannot be made.
    """
    folder = Path(tempfile.gettempdir(), prefix + secrets.token_hex(8))
    try:
        folder.mkdir(mode=0o700)
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
