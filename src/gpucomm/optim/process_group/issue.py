"""How a process group issues its calls: by its communicator, or by the Gloo group inside."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch.distributed as dist

from gpucomm.comm import Communicator
from gpucomm.errors import ClosedError, InvalidArgumentError, UnsupportedTypeError
from gpucomm.optim.process_group.calls import is_async
from gpucomm.optim.process_group.order import Order
from gpucomm.optim.process_group.work import Done, Work, place
from gpucomm.optim.streams import Beside

__all__ = ["Calls", "Issuing"]

Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]  # arguments and keywords of each
_MOST_KEPT = 64


class Issuing(dist.ProcessGroup):  # type: ignore[misc]
    """A group on a communicator."""

    _comm: Communicator
    # The Gloo group inside. Its methods are called, not those of super(), which hold Python's lock while they
    # wait for Gloo's: whose thread wants Python's to let go of what a call has left.
    _gloo: Any
    _together: list[Work] | None = None  # what was issued since _start_coalescing

    def __init__(self, rank: int, world: int) -> None:
        """Takes who this process is in the group."""
        super().__init__(rank, world)
        # C++ would wait for ever for a Work that it alone holds, without the Python half, as in DDP's join(),
        # which asks for the result too, a number.
        self._kept: OrderedDict[int, Work] = OrderedDict()
        self._order = Order()

    def _patience_s(self) -> float:
        """The group's timeout, which torch's set_timeout() changes, as other functions of torch do."""
        return float(self._gloo.options._timeout.total_seconds())

    def _issue(self, call: Callable[..., Any], calls: Calls, opts: Any, result: Any, copies: Any) -> Done:
        patience = self._patience_s()
        for _, how in calls:
            how.setdefault("timeout", patience)
        if not is_async(opts):
            with self._order.lock:  # not until its end: others may issue something meanwhile
                self._number(call.__name__)
            for args, how in calls:
                call(*args, **how)
            place(copies)
            return Done(result)
        beside, pending = Beside(), []
        with self._order.lock:
            number = self._number(call.__name__)
            for args, how in calls:
                with beside.behind(_first(args[0], how)):
                    pending.append(call(*args, async_op=True, **how))
        return self._under_way(number, pending, result, copies, beside)

    def _number(self, what: str) -> int:
        """Of a call that is issued now, behind the order's lock.

        Raises:
            InvalidArgumentError: a callback issues it, behind others; the ranks would not agree.
        """
        why = self._order.why_not()
        if why and self._comm.world > 1:
            raise self._comm._refused(what, InvalidArgumentError(f"{what}: {why}"))
        return self._order.take()

    def _under_way(
        self, number: int, pending: Any, result: Any, copies: Any = (), beside: Beside | None = None
    ) -> Work:
        """Work that has been issued; what is coalesced is waited for together."""
        callbacks = partial(self._order.callbacks, number)
        work = Work(pending, result, copies, beside, self._kept, callbacks)
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        if (together := self._together) is not None:
            # torch does not end a coalescing that has failed: what has ended well is not kept for it.
            while together and together[0].is_success():
                together.pop(0)
            together.append(work)
        return work

    def _check_gloo(self, what: str) -> None:
        """Refuses what would go by Gloo, which may be open still, after a fault; and in a coalescing.

        Raises:
            ClosedError: the group is closed.
            UnsupportedTypeError: the end of a coalescing would not wait for it, as Gloo has none.
        """
        if self._comm.closed:
            raise ClosedError(
                f"{what} goes by the Gloo group inside, and this process group is closed after a fault"
                f" (rank {self._comm.rank} of {self._comm.world})"
            )
        if self._together is not None:
            raise UnsupportedTypeError(
                f"{what} goes by the Gloo group inside, which coalesces nothing: call it outside a coalescing"
                f" (torch ends none that has failed; rank {self._comm.rank} of {self._comm.world})"
            )


def _first(sent: Any, how: Mapping[str, Any]) -> Any:
    """A tensor of a call, which tells its device."""
    if sent is None:  # what only the root sends
        return how["out"]
    return sent[0] if isinstance(sent, list) else sent
