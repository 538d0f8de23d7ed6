"""The process group: a communicator for what gpucomm has, a Gloo group inside for all others."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from typing import Any

import torch
import torch.distributed as dist

from gpucomm.comm import Communicator
from gpucomm.ending import close_at_exit
from gpucomm.errors import InvalidArgumentError, UnavailableError
from gpucomm.launch.asked import deterministic
from gpucomm.launch.attempt import answering, gloo_group, meeting, own_store
from gpucomm.launch.store import Seat, communicator_of
from gpucomm.optim.process_group.futures import pool
from gpucomm.optim.process_group.messages import Messages
from gpucomm.optim.process_group.options import Options
from gpucomm.optim.process_group.work import Together, Work
from gpucomm.probe import measure

__all__ = ["ProcessGroup", "register"]

_NAME = "gpucomm"
_LAST_FUTURES_S = 2.0  # how long the end of the process waits for callbacks of what was under way

_open: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


class ProcessGroup(Messages):
    """A group of torch.distributed on a communicator of its own.

    torch.distributed makes it: `init_process_group("gpucomm")`, `new_group`, `init_device_mesh`. Its own are
    all collectives in all their forms, and messages of tensors on GPUs. Those of host memory, and sparse
    tensors, go by a Gloo group inside, which does not compare what the ranks call. After a fault, also one
    that a wait for Gloo has raised, it is closed for good, on every rank.
    """

    def __init__(self, seat: Seat, store: Any, options: Options) -> None:
        """Meets the other members; every one of them calls it.

        Args:
            seat: who this process is.
            store: the group's.
            options: how its collectives travel.

        Raises:
            Error: as `gpucomm.init`.
        """
        super().__init__(seat.rank, seat.world)
        where = f"rank {seat.rank} of {seat.world}"
        with answering(where, "its process group"):
            store = own_store(store, seat.rank, seat.world, seat.timeout_s)
        self._choices = options.choices
        frozen = deterministic(os.environ)
        self._comm = communicator_of(seat, store, options.text, frozen)
        if frozen:
            self._comm.freeze()
        self._prepare()
        inner = dist.ProcessGroup.BackendType.GLOO
        with meeting(where, seat.timeout_s, time.monotonic()):
            self._gloo = gloo_group("gloo", store, seat.rank, seat.world, seat.timeout_s)
        self._set_default_backend(inner)
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            self._register_backend(torch.device(device), inner, self._gloo)
        _open.add(self)

    def _prepare(self) -> None:
        """All members are here; in a call that is not waited for they need not come together."""
        if self._comm.world == 1 or self._comm.frozen:
            return
        measure(self._comm)
        for codec in sorted({choice["codec"] for choice in self._choices.values() if choice.get("codec")}):
            self._comm._time_codec(codec)

    @property
    def communicator(self) -> Communicator:
        """The group's communicator, with its statistics, its nodes and what "auto" has learnt."""
        return self._comm

    def getBackendName(self) -> str:
        """The name that it was registered by."""
        return _NAME

    name = getBackendName

    def shutdown(self) -> None:
        """Closes the communicator; `destroy_process_group` calls it. Calls under way fail on every rank."""
        _open.discard(self)
        try:
            self._comm.close()
        finally:
            if self._comm._fabric is not None:
                self._comm._fabric.close()

    def abort(self) -> None:
        """Ends the group on every rank, at once."""
        self._comm.abort()
        self.shutdown()

    def _start_coalescing(self, device: Any) -> None:
        self._together = []

    def _end_coalescing(self, device: Any) -> Work:
        issued, self._together = self._together, None
        return Together(issued or [])


def register() -> None:
    """Makes "gpucomm" a backend of torch.distributed, for tensors in host memory and on CUDA's GPUs.

    Raises:
        UnavailableError: torch.distributed is set to take its backends from torchcomms.
    """
    _refuse_torchcomms()
    dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    atexit.register(_leave)


def _refuse_torchcomms() -> None:
    if getattr(dist.distributed_c10d, "_use_torchcomms_enabled", bool)():
        raise UnavailableError(
            "torch.distributed takes its backends from torchcomms, which knows none of other packages: unset"
            " TORCH_DISTRIBUTED_USE_TORCHCOMMS (torch.distributed.config.use_torchcomms) to use gpucomm"
        )


def _create(given: Any, options: Any) -> ProcessGroup:
    """Called by torch.distributed on every member."""
    rank, world = given.group_rank, given.group_size
    if options is not None and not isinstance(options, Options):
        raise InvalidArgumentError(
            f"pg_options must be gpucomm.optim.process_group.Options, got {type(options).__name__}"
            f" (rank {rank} of {world})"
        )
    members = list(given.global_ranks_in_group) or list(range(world))
    total = dist.get_world_size() if dist.is_initialized() else world
    seat = Seat(rank, members, total, given.timeout.total_seconds())
    return ProcessGroup(seat, given.store, options or Options())


def _leave() -> None:
    """Closes what is open at the end of the process, before the threads that wait there lose Python."""
    for group in list(_open):
        close_at_exit(group.communicator, group.shutdown)
    pool.drain(_LAST_FUTURES_S)
