"""`use`: sets gpucomm's collectives on every FSDPModule of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np
import torch.distributed as dist

from gpucomm.comm import Communicator
from gpucomm.errors import InvalidArgumentError, MismatchError, UnsupportedTypeError
from gpucomm.optim.agreement import next_number, require_communicator, telling
from gpucomm.optim.fsdp.collectives import AllGather, Lane, ReduceScatter, Replicas
from gpucomm.optim.fsdp.groups import Group, copied, find_groups
from gpucomm.optim.fsdp.handle import Handle
from gpucomm.optim.fsdp.meter import Meter
from gpucomm.optim.fsdp.residual import Residual
from gpucomm.optim.fsdp.rounds import Round
from gpucomm.optim.fsdp.route import Route

__all__ = ["use"]

_set_once: WeakSet[Any] = WeakSet()  # modules: a second time their residuals would be added twice


def use(
    model: Any,
    comm: Communicator,
    all_gather: str | None = "zfp:8",
    reduce_scatter: str | None = "int8",
    *,
    replicate: Communicator | None = None,
    all_reduce: str | None = "int8",
    error_feedback: bool = True,
    algorithm: str = "auto",
) -> Handle:
    """Lets FSDP2 communicate through gpucomm; every rank must call it, after the last fully_shard.

    What no codec takes travels dense: groups that mix dtypes (torch gathers them as bytes), integers, and a
    message whose sum on some rank would not be finite (so a GradScaler sees its infinities) or more than the
    codec holds.

    Args:
        model: holds modules that `fully_shard` has sharded over a mesh of cpu or cuda.
        comm: the ranks of the mesh, in its order.
        all_gather: the codec in which parameters are gathered; None or "dense": none. The sharded parameters
            themselves stay exact.
        reduce_scatter: the codec in which gradients are reduced.
        replicate: the ranks that hold the same shard of other copies of the model (HSDP), which begin with
            the same parameters; each copy is sharded over one dimension of the mesh then.
        all_reduce: the codec in which the reduced shards of these are reduced.
        error_feedback: whether what a lossy codec takes from a gradient is added to the next one. It needs
            the memory of all gradients, unsharded, in float32, on every rank, and as much again from the
            first backward on.
        algorithm: for all of these collectives.

    Returns:
        A handle.

    Raises:
        InvalidArgumentError: the model is not sharded, or over other ranks, or was given to `use` before; a
            codec or algorithm is unknown; a codec loses, and ranks beyond these hold a parameter too.
        UnsupportedTypeError: a codec does not take the parameters' dtype.
        MismatchError: the ranks do not say the same.
        UnavailableError: this torch keeps its groups in another way.
    """
    with telling(comm, "fsdp.use"):
        if not isinstance(replicate, Communicator | None):
            raise InvalidArgumentError(f"[fsdp] replicate must be a communicator or None, got {replicate!r}")
        groups = find_groups(model)
        require_communicator(comm, "fsdp")
        # First of all: where only some ranks find a fault, the others must not wait for them here.
        there = _meet(comm, replicate, bool(error_feedback))
        _require_ranks(groups, comm, replicate, there)
        codecs = (all_gather, reduce_scatter, all_reduce)
        gather, scatter, reduce = (Route(codec, algorithm) for codec in codecs)
        _require_one_copy(groups, [gather, scatter] if replicate is None else [gather, scatter, reduce])
        for group in groups:
            _require_dtypes(gather, group.gathered_dtypes(), "all_gather")
            _require_dtypes(scatter, group.reduced_dtypes(), "reduce_scatter")
            if replicate is not None:
                _require_dtypes(reduce, group.reduced_dtypes(), "all_reduce")
    meter = Meter(comm)
    number = next_number(comm)
    lanes = [Lane(comm, meter, gather, number), Lane(comm, meter, scatter, number)]
    if replicate is not None:
        lanes.append(Lane(replicate, Meter(replicate), reduce, next_number(replicate)))
    _try(lanes)
    lossy = any(lane.route.lossy for lane in lanes[1:])
    feeding = error_feedback and lossy and comm.world > 1
    backward = Round(list(zip(("reduce_scatter", "all_reduce"), lanes[1:], strict=False)))
    residuals = [_set(group, lanes, backward if feeding else None) for group in groups]
    place = (comm.rank, comm.world)
    if replicate is not None:
        place = (replicate.rank * comm.world + comm.rank, replicate.world * comm.world)
    meters = list(dict.fromkeys(lane.meter for lane in lanes))
    return Handle(groups, residuals, backward, meters, place)


def _set(group: Group, lanes: Sequence[Lane], backward: Round | None) -> Residual | None:
    _set_once.add(group.module)
    residual = Residual(group.world, group.device) if backward is not None else None
    if backward is not None:
        group.watch()
        group.module.register_forward_pre_hook(lambda *_: backward.before_forward())
    scatter = ReduceScatter(lanes[1], group, residual, backward, ends=len(lanes) == 2)
    group.module.set_custom_all_gather(AllGather(lanes[0], group, backward))
    group.module.set_custom_reduce_scatter(scatter)
    if len(lanes) > 2:
        group.module.set_all_reduce_hook(Replicas(lanes[2], group, scatter))
    return residual


def _meet(comm: Communicator, replicate: Communicator | None, error_feedback: bool) -> list[int]:
    """The ranks of torch, which say alike what the first calls do not show."""
    said = {"error_feedback": error_feedback, "replicate is None": replicate is None}
    told = comm.all_gather(np.array([[dist.get_rank(), *said.values()]], np.int64)).tolist()
    for rank, (_, *others) in enumerate(told):
        for (name, own), other in zip(said.items(), others, strict=True):
            if own != other:
                raise MismatchError(
                    f"[fsdp] the ranks do not say the same: rank {comm.rank} of {comm.world} says {name}: "
                    f"{own}, rank {rank} {bool(other)}"
                )
    return [rank for rank, *_ in told]


def _require_ranks(
    groups: Sequence[Group], comm: Communicator, replicate: Communicator | None, there: list[int]
) -> None:
    if replicate is not None and comm.world == 1:
        raise InvalidArgumentError(
            "[fsdp] replicate= needs shards of at least 2 ranks, got a communicator of 1: "
            "use DistributedOptimizer over the replicas instead"
        )
    for group in groups:
        if group.module in _set_once:
            raise InvalidArgumentError(
                f"[fsdp] {group} communicates through gpucomm already: use() is called once for a model "
                f"(rank {comm.rank} of {comm.world})"
            )
        group.require_plain()
        ranks = dist.get_process_group_ranks(group.process_group)
        if ranks != there:
            raise InvalidArgumentError(
                f"[fsdp] {group} is sharded over torch's ranks {ranks}, but the communicator has {there}: "
                f"they must be the same, in the same order (rank {comm.rank} of {comm.world})"
            )
        if group.replicates:
            raise InvalidArgumentError(
                f"[fsdp] {group} is sharded over a mesh of two dimensions, so torch all-reduces itself: give "
                'fully_shard the dimension of the shards alone, as in mesh["shard"], and use() the ranks of '
                "the other one as replicate="
            )


def _require_one_copy(groups: Sequence[Group], routes: Sequence[Route]) -> None:
    lossy = [route.spec for route in routes if route.lossy]
    if lossy and (name := copied(groups)):
        raise InvalidArgumentError(
            f"[fsdp] ranks along another dimension of the mesh have copies of parameter {name!r} (tensor "
            f"parallelism), and codec {lossy[0]!r} would make other values of it and its gradient on each of "
            "them: give codecs that lose nothing, as all_gather=None, reduce_scatter=None"
        )


def _require_dtypes(route: Route, dtypes: Mapping[str, Any], collective: str) -> None:
    if route.spec == "dense" or len(set(dtypes.values())) > 1:
        return  # several dtypes travel as bytes
    for name, dtype in dtypes.items():
        if dtype.is_floating_point and not route.takes(dtype):
            raise UnsupportedTypeError(
                f"[fsdp] {collective}={route.spec!r} does not take parameter {name!r}, "
                f"which is sent as {dtype}"
            )


def _try(lanes: Sequence[Lane]) -> None:
    """Tells a bad algorithm, or ranks that disagree, now and not from the depth of the first backward()."""
    calls = ("all_gather", "reduce_scatter", "all_reduce")
    for lane, collective in zip(lanes, calls, strict=False):
        x = np.zeros(lane.comm.world, np.float32)
        for how in [lane.route.dense, *([lane.route.coded] if lane.route.spec != "dense" else [])]:
            getattr(lane.comm, collective)(x.copy(), **how)
