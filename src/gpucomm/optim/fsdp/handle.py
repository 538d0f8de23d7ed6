"""What the communication of a model has cost, and the state that goes with its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucomm.errors import InvalidArgumentError
from gpucomm.exchange import own_residuals, plain_name
from gpucomm.optim.fsdp.groups import Group
from gpucomm.optim.fsdp.meter import Meter
from gpucomm.optim.fsdp.residual import Residual
from gpucomm.optim.fsdp.rounds import Round

__all__ = ["Handle"]


class Handle:
    """What `use` returns: what the communication has cost, and the state to save with a checkpoint."""

    def __init__(
        self,
        groups: Sequence[Group],
        residuals: Sequence[Residual | None],
        backward: Round,
        meters: Sequence[Meter],
        place: Any,
    ) -> None:
        self._groups, self._residuals, self._meters = groups, residuals, meters
        self._backward = backward
        self._rank, self._world = place

    def stats(self) -> dict[str, dict[str, Any]]:
        """Tells what the collectives have cost since `use`.

        Returns:
            By collective ("all_gather", "reduce_scatter", "all_reduce"): calls; coded, how many of them were
            given the codec (which algorithm="auto" takes where that is faster; a reduce_scatter is not even
            given it once it has settled otherwise); bytes_sent by this rank;
            exposed_s, the seconds that training waited for them.
        """
        for meter in self._meters:
            meter.settle()
        return {kind: dict(account) for meter in self._meters for kind, account in meter.counts.items()}

    def discard(self) -> None:
        """Gives the residuals back that were there before the last backward, whose gradients are thrown away.

        On all ranks, where a step is left out, or another model's loss went through this one.
        """
        self._backward.discard()

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's residuals: to be saved by every rank, they differ.

        Returns:
            rank and world; residuals: by the parameter's name a float32 tensor in the shape of its whole
            gradient; and worth: what each counts for in the gradient, 1 / world where that is a mean.
        """
        residuals, worth = {}, {}
        for group, residual in zip(self._groups, self._residuals, strict=True):
            for slot in group.slots.values():
                if residual is not None and (held := residual.get(slot)) is not None:
                    name = plain_name(slot.name)
                    residuals[name], worth[name] = held, self._worth(group)
        return {"rank": self._rank, "world": self._world, "residuals": residuals, "worth": worth}

    def _worth(self, group: Group) -> float:
        copies = self._world // group.world
        return group.worth / (copies if group.divides_by_all else 1)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state_dict` returned on this rank; other parameters have no residual then.

        An empty state: none has. One saved where gradients were divided otherwise, as by another world, is
        scaled, by what torch has been told of that until now.

        Raises:
            InvalidArgumentError: it is of another rank or world or of other parameters, or nothing is fed
                back here; nothing was changed.
        """
        me = f"rank {self._rank} of {self._world}"
        residuals = own_residuals(state, f"fsdp, {me}", self._rank, self._world)
        slots = {
            plain_name(slot.name): (slot, residual, self._worth(group))
            for group, residual in zip(self._groups, self._residuals, strict=True)
            for slot in group.slots.values()
        }
        for name, tensor in residuals.items():
            if name not in slots or tuple(tensor.shape) != slots[name][0].shape:
                known = f"of shape {slots[name][0].shape}" if name in slots else "not sharded"
                raise InvalidArgumentError(
                    f"[fsdp] a residual of parameter {name!r} has shape {tuple(tensor.shape)}, "
                    f"but here it is {known} ({me})"
                )
        if residuals and None in self._residuals:
            raise InvalidArgumentError(
                f"[fsdp] residuals were given to load, but nothing is fed back here: error_feedback=False, "
                f"or no codec of gradients that loses anything ({me})"
            )
        for residual in self._residuals:
            if residual is not None:
                residual.drop()
        told = {plain_name(name): worth for name, worth in state.get("worth", {}).items()}
        for name, tensor in residuals.items():
            slot, residual, worth = slots[name]
            if residual is not None:
                residual.put(slot, tensor * (told.get(name, worth) / worth))
