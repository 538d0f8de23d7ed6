"""Launchers that start all ranks anew keep the store in which those of the attempt before have met."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["own_store"]


def own_store(store: Any, world: int) -> Any:
    """A part of the group's store that no group of this name has used before.

    Groups of a job that initialises torch.distributed once more have the names of the first ones, and where
    the launcher keeps the store, the first ones' addresses are still there.

    Args:
        store: the group's, by torch.distributed.
        world: how many ranks the group has.
    """
    from torch.distributed import PrefixStore

    # Where ranks of an attempt have failed before this, the others have counted already. Agents of several
    # nodes count attempts each by itself.
    one_agent = os.environ.get("GROUP_WORLD_SIZE") == "1"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if one_agent else "of all"
    store = PrefixStore(f"attempt {attempt}", store)
    came = store.add("gpucomm", 1)
    return PrefixStore(f"gpucomm {(came - 1) // world}", store)
