"""Residuals: what a lossy codec has kept back of each parameter's gradient, to be sent with the next one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gpucomm.errors import InvalidArgumentError
from gpucomm.exchange.base import Part

__all__ = ["Flat", "Residuals", "own_residuals", "plain_name", "require_known", "reshard"]

_KEYS = {"rank", "world", "residuals"}


def plain_name(name: str) -> str:
    """Returns a parameter's name without what torch.compile adds, so that states are good for both."""
    return ".".join(word for word in name.split(".") if word != "_orig_mod")


class Flat:
    """The residuals of one bucket in one piece, so that a step costs one addition.

    What was held when gradients were last used stays known until they are again: where those that were made
    since are thrown away, what they have lost was lost of nothing.

    Args:
        parts: the parameters in the bucket.
        device: where the bucket lies.

    Attributes:
        held: float32, shape (n,): to be added to the next gradients.
        lost: float32, shape (n,): what the exchange under way has lost so far.
    """

    def __init__(self, parts: tuple[Part, ...], device: Any) -> None:
        import torch

        self.parts = parts
        self._parts_of = {part.name: part for part in parts}
        count = parts[-1].span.stop
        self.held, self.lost = (torch.zeros(count, dtype=torch.float32, device=device) for _ in range(2))
        self._widened: Any = None
        self._before: Any = None  # held when gradients were last used; None: no round has been accepted since
        self._spare: Any = None

    def begin(self) -> Any:
        """Returns where what a round loses is to be written."""
        if self._before is self.lost:
            self.lost = self.lost.new_empty(len(self.lost)) if self._spare is None else self._spare
            self._spare = None
        return self.lost

    def part(self, name: str) -> Any:
        """Returns the view of one parameter's residual, shape (length,)."""
        return self.held[self._parts_of[name].span]

    def added_to(self, gradients: Any) -> Any:
        """Adds what is held to gradients: in place to float32, in a float32 buffer of its own to others.

        So nothing is rounded before the codec rounds, which works in float32 anyway.
        """
        import torch

        if gradients.dtype is torch.float32:
            return gradients.add_(self.held)
        if self._widened is None:
            self._widened = torch.empty_like(self.held)
        return torch.add(gradients, self.held, out=self._widened)

    def accept(self, unsent: Sequence[int]) -> None:
        """Holds what was lost; of the parts that nobody uses, what was held before."""
        _copy(self.held, self.lost, [self.parts[place] for place in unsent])
        self.held, self.lost = self.lost, self.held
        if self._before is None:
            self._before = self.lost

    def used(self, names: Collection[str]) -> None:
        """The gradients of these parameters were used."""
        if self._before is not None and not self._copy_named(self.held, self._before, names):
            self._forget()

    def discard(self, names: Collection[str]) -> None:
        """Holds of these what was held when gradients were last used: those made since are thrown away."""
        if self._before is not None and not self._copy_named(self._before, self.held, names):
            if self._before is self.lost:
                self.lost = self.held
            self.held, self._before = self._before, self.held
            self._forget()

    def _copy_named(self, source: Any, target: Any, names: Collection[str]) -> bool:
        """Copies these parts; False: they are all there are, and nothing was copied."""
        parts = [part for part in self.parts if part.name in names]
        if len(parts) == len(self.parts):
            return False
        _copy(source, target, parts)
        return True

    def _forget(self) -> None:
        if self._before is not self.lost:
            self._spare = self._before
        self._before = None

    def accept_some(self, places: Sequence[int]) -> None:
        """Holds what was lost of these parts alone."""
        _copy(self.lost, self.held, [self.parts[place] for place in places])


def _copy(source: Any, target: Any, parts: Iterable[Part]) -> None:
    for part in parts:
        target[part.span] = source[part.span]


class Residuals:
    """The residuals of all parameters, by their names.

    Args:
        who: the exchange and the rank, for texts.
        rank: this rank.
        world: how many there are.
    """

    def __init__(self, who: str, rank: int, world: int) -> None:
        self._who, self._rank, self._world = who, rank, world
        self._flats: dict[str, Flat] = {}
        self._loaded: dict[str, Any] = {}  # until their bucket is known

    def of(self, parts: Sequence[Part], device: Any) -> Flat:
        """Returns a bucket's residuals; those of parameters that were in other buckets come along."""
        key = tuple(parts)
        flat = self._flats.get(key[0].name)
        if flat is None or flat.parts != key:
            return self._gather(key, device)
        # What was frozen for a while comes back to a bucket that the others have left meanwhile.
        stayed = all(self._flats[part.name] is flat for part in key)
        return flat if stayed else self._gather(key, device)

    def _gather(self, parts: tuple[Part, ...], device: Any) -> Flat:
        flat = Flat(parts, device)
        for part in parts:
            residual = self._known(part.name)
            if residual is None:
                continue
            if residual.numel() != part.length:
                raise _another_size(self._who, part.name, residual.numel(), part.length)
            flat.part(part.name).copy_(residual)
        for part in parts:
            self._flats[part.name] = flat
            self._loaded.pop(part.name, None)
        return flat

    def _known(self, name: str) -> Any:
        """Returns a parameter's residual; None: it has none."""
        if name in self._loaded:
            return self._loaded[name]
        return self._flats[name].part(name) if name in self._flats else None

    @property
    def flats(self) -> list[Flat]:
        """Those of all buckets."""
        return list(dict.fromkeys(self._flats.values()))

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of all residuals in host memory, by parameter, and whose they are."""
        names = dict.fromkeys([*self._flats, *self._loaded])
        residuals = {name: self._known(name).to("cpu", copy=True) for name in names}
        return {"rank": self._rank, "world": self._world, "residuals": residuals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back this rank's residuals in place of the present ones; an empty state: there are none.

        Raises:
            InvalidArgumentError: it is no such state, or that of another rank or world.
        """
        residuals = own_residuals(state, self._who, self._rank, self._world)
        self._flats.clear()
        self._loaded = {name: residual.clone() for name, residual in residuals.items()}


def own_residuals(state: Mapping[str, Any], who: str, rank: int, world: int) -> Mapping[str, Any]:
    """Returns the residuals in a state, by parameter; those of an empty one: none.

    Args:
        state: what this rank has saved.
        who: the exchange and the rank, for texts.
        rank: this rank.
        world: how many there are.

    Raises:
        InvalidArgumentError: it is no such state, or that of another rank or world.
    """
    if not state:
        return {}
    if not _is_state(state):
        raise _no_state(state, who)
    if (state["rank"], state["world"]) != (rank, world):
        raise InvalidArgumentError(
            f"[{who}] the state is that of rank {state['rank']} of {state['world']}, and every "
            "rank has its own residuals: save the state of every rank, and load what "
            f"gpucomm.exchange.reshard(states, {world}) makes of all of them for this rank"
        )
    return {plain_name(name): residual for name, residual in state["residuals"].items()}


def require_known(state: Mapping[str, Any], sizes: Mapping[str, int], who: str) -> None:
    """Checks that the residuals in a state, if it has any, are those of known parameters.

    Args:
        state: that of an exchange.
        sizes: of all parameters, by their plain names, in elements.
        who: the optimizer and the rank, for texts.

    Raises:
        InvalidArgumentError: it is no state, or one would never be sent, as no parameter has its name or its
            number of elements.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("residuals", {}), Mapping):
        raise _no_state(state, who)
    residuals = {plain_name(name): residual for name, residual in state.get("residuals", {}).items()}
    unknown = sorted(residuals.keys() - sizes.keys())
    if unknown:
        raise InvalidArgumentError(
            f"[{who}] the state has a residual of {unknown[0]!r} ({len(unknown)} of such names), but no "
            "parameter is called so: it is another model's"
        )
    for name, residual in residuals.items():
        if hasattr(residual, "numel") and residual.numel() != sizes[name]:  # what is no tensor, another says
            raise _another_size(who, name, residual.numel(), sizes[name])


def _another_size(who: str, name: str, given: int, wanted: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"[{who}] the residual of parameter {name!r} has {given} elements, but its gradient has {wanted}: it "
        "is another model's"
    )


def _no_state(state: Any, who: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"[{who}] the state must be what state_dict() returned, got {state!r:.200}")


def _is_state(state: Any) -> bool:
    if not isinstance(state, Mapping) or _KEYS - set(state) or not isinstance(state["residuals"], Mapping):
        return False
    numbers = isinstance(state["rank"], int) and isinstance(state["world"], int)
    return numbers and all(hasattr(residual, "cpu") for residual in state["residuals"].values())


def reshard(states: Sequence[Mapping[str, Any]], world: int) -> list[dict[str, Any]]:
    """Gives the residuals of all ranks of one world to the ranks of another.

    What is kept is the sum over the ranks of what each residual is worth in the result. Where that is a mean
    (residual / world), every new rank gets the mean of the old residuals. States of FSDP2, which may sum, say
    themselves what one is worth: there every new rank gets its share of the sum, and scales it as it loads.

    Args:
        states: what :meth:`Exchange.state_dict` returned on every rank of one world, in any order.
        world: how many ranks there are from now on.

    Returns:
        The states of the new ranks, in their order; for :meth:`Exchange.load_state_dict`.

    Raises:
        InvalidArgumentError: a state is missing or twice there, or the ranks held other parameters.
    """
    if isinstance(world, bool) or not isinstance(world, int) or world < 1:
        raise InvalidArgumentError(f"[reshard] world must be a whole number from 1 up, got {world!r}")
    if not isinstance(states, Iterable) or not all(map(_is_state, states)):
        raise InvalidArgumentError("[reshard] states must be those of an exchange that keeps residuals")
    ranks = sorted(state["rank"] for state in states)
    told = {state["world"] for state in states}
    if told != {len(ranks)} or ranks != list(range(len(ranks))):
        raise InvalidArgumentError(
            "[reshard] states must be those of every rank of one world, once each; got those of ranks "
            f"{', '.join(map(str, ranks)) or 'none'} of {' and '.join(map(str, sorted(told))) or 'no'} ranks"
        )
    residuals = [state["residuals"] for state in sorted(states, key=lambda state: state["rank"])]
    names = residuals[0].keys()
    if any(one.keys() != names for one in residuals):
        raise InvalidArgumentError("[reshard] states must hold the same parameters on all ranks")
    among = world if "worth" in states[0] else len(ranks)
    shares = {name: sum(one[name].cpu().double() for one in residuals) / among for name in names}
    return [
        {
            **states[0],
            "rank": rank,
            "world": world,
            "residuals": {name: share.float() for name, share in shares.items()},
        }
        for rank in range(world)
    ]
