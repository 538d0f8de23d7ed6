"""How ranks are started and find each other: names only."""

from gpucomm.launch.start import init
from gpucomm.launch.worlds import World, local

__all__ = ["World", "init", "local"]
