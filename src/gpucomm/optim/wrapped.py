"""An optimizer around an optimizer: to schedulers, scalers and checkpoints it is the inner one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from gpucomm.errors import InvalidArgumentError, UnsupportedTypeError
from gpucomm.optim.agreement import require_communicator
from gpucomm.optim.hooks import OutsideDdp

__all__ = ["WrappedOptimizer", "require_arguments"]

_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


def _forwarded(name: str) -> property:
    """Returns a property that reads, writes and deletes the inner optimizer's attribute."""
    return property(
        lambda self: getattr(self.inner, name),
        lambda self, value: setattr(self.inner, name, value),
        lambda self: delattr(self.inner, name),
    )


def require_arguments(model: Any, comm: Any) -> None:
    """Raises InvalidArgumentError unless these are a module and a communicator, or what acts as one."""
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(f"[optim] model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise InvalidArgumentError(
            "[optim] model is a ScriptModule, which takes no hooks: wrap it unscripted"
        )
    require_communicator(comm, "optim")


class WrappedOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Is an Optimizer, because schedulers insist, but groups, state, defaults and hooks are the inner's.

    Args:
        inner: the optimizer that does the work.

    Raises:
        InvalidArgumentError: `inner` is not a torch optimizer, or is wrapped already.
    """

    param_groups = _forwarded("param_groups")
    state = _forwarded("state")
    defaults = _forwarded("defaults")
    # GradScaler sets these two around step() of a fused optimizer, which reads them from itself.
    grad_scale = _forwarded("grad_scale")
    found_inf = _forwarded("found_inf")

    def __init__(self, inner: Any) -> None:
        if not isinstance(inner, torch.optim.Optimizer):
            raise InvalidArgumentError(
                f"[optim] optimizer must be a torch.optim.Optimizer, got {type(inner).__name__}"
            )
        if isinstance(inner, WrappedOptimizer):
            raise InvalidArgumentError(
                f"[optim] optimizer is a {type(inner).__name__} already: wrap what is inside it"
            )
        # Not Optimizer.__init__: it would make groups and state of its own, and have step() run all hooks,
        # which the inner optimizer's runs.
        self.inner = inner
        self._stop_watching: Callable[[], Any] = lambda: None
        for name in _HOOKS:
            setattr(self, name, getattr(inner, name))

    @property
    def _step_supports_amp_scaling(self) -> bool:
        return bool(getattr(self.inner, "_step_supports_amp_scaling", False))

    def _watch_for_ddp(self, model: Any, rank: str) -> None:
        """Refuses passes by which DDP would average the model's gradients too, until the first step.

        From then on torch.jit.script, which takes no such hook, takes the model.
        """
        hook = model.register_forward_pre_hook(OutsideDdp(rank), prepend=True)
        self._stop_watching = weakref.finalize(self, hook.remove)

    def state_dict(self) -> dict[str, Any]:
        """Returns the inner optimizer's state."""
        return dict(self.inner.state_dict())  # torch's would hand this optimizer to the inner one's hooks

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back a state, that of a plain optimizer too."""
        self.inner.load_state_dict(state_dict)  # torch's would write behind the forwarded attributes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not set yet: looking it up in itself would never end
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __getstate__(self) -> NoReturn:
        raise UnsupportedTypeError(
            f"[optim] a {type(self).__name__} holds a communicator, so it can neither be pickled nor copied; "
            "save state_dict() and wrap again"
        )
