"""Messages of a process group that go by its communicator, as those of GPUs do; here of host memory."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from training import on_ranks

from gpucomm.errors import MismatchError, UnsupportedTypeError
from gpucomm.optim.process_group.messages import Messages


class Group(Messages):
    def __init__(self, comm):
        super().__init__(comm.rank, comm.world)
        self._comm = comm
        self._gloo = SimpleNamespace(options=SimpleNamespace(_timeout=timedelta(seconds=60)))


class Passing(Group):
    def _by_communicator(self, what, tensors, tag):
        return True


ON_GPU = [SimpleNamespace(is_cuda=True, device="cuda:0")]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.int64, torch.float8_e5m2]
)
def test_both_directions_at_once_and_in_order(dtype):
    """Tensors with gaps and without, as handles and futures."""

    def body(comm):
        group, other = Passing(comm), 1 - comm.rank
        mine = [(torch.arange(12).reshape(3, 4) % 7 + comm.rank + i).to(dtype) for i in range(3)]
        mine[1] = mine[1].t().contiguous().t()
        got = [
            torch.empty(3, 4, dtype=dtype),
            torch.empty(4, 3, dtype=dtype).t(),
            torch.empty(3, 4, dtype=dtype),
        ]
        sent = [group.send([x], other) for x in mine]
        received = [group.recv([x], other) for x in got]
        for work in received[:2] + sent:
            assert work.wait()
        assert received[2].get_future().wait()[0] is got[2]
        return [x.contiguous().to(torch.complex64) for x in (*mine, *got)]

    first, second = on_ranks(2, body)
    assert all(map(torch.equal, first[:3], second[3:])) and all(map(torch.equal, second[:3], first[3:]))


def test_what_differs_is_told():
    def body(comm):
        group = Passing(comm)
        call = group.recv if comm.rank else group.send
        with pytest.raises(MismatchError, match=r"float32|float64"):
            call([torch.ones(3, dtype=torch.float64 if comm.rank else torch.float32)], 1 - comm.rank).wait()
            comm.barrier()  # a sender whose message has left learns it here
        return comm.closed

    assert on_ranks(2, body) == [True, True]


def test_tags_and_any_source_of_gpus_are_refused():
    def body(comm):
        group = Group(comm)
        for call, what in ((group.send, "send"), (group.recv, "recv")):
            with pytest.raises(UnsupportedTypeError, match=rf"{what} of tensors on a GPU .* tag 3 \(rank 0"):
                call(ON_GPU, 0, 3)
        with pytest.raises(UnsupportedTypeError, match=r"recv from any rank .* cuda:0"):
            group.recv_anysource(ON_GPU)

    on_ranks(1, body)
