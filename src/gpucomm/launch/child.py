"""Runs one rank of `gpucomm run`: asks to be killed with its launcher, then becomes the command.

Started by its path, so that it costs no import of gpucomm: `python -I -S child.py LAUNCHER_PID COMMAND...`
"""

import ctypes
import os
import signal
import sys

__all__ = ["die_with", "main"]

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent's thread that started it ends; survives exec."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it ended before we asked


def main() -> int:
    """Replace this process by the command; returns only where that fails."""
    die_with(int(sys.argv[1]))
    command = sys.argv[2:]
    # Python ignores SIGPIPE, and what is ignored stays ignored in the command.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"gpucomm run: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main())
