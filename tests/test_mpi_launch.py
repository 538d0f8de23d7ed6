"""What `init()` asks of MPI, and what it says where MPI is not as it must be: of an MPI that is none."""

from __future__ import annotations

import atexit
import sys
from types import SimpleNamespace

import pytest

from gpucomm import errors
from gpucomm.launch import mpi
from gpucomm.launch.ranks import Ranks

RANKS = Ranks(1, 4, "job", "mpich")


class Duplicate:
    """Of the communicator of all; met after so many questions."""

    def __init__(self, questions):
        self.questions, self.said = questions, []

    def Test(self):
        self.questions -= 1
        return self.questions < 0

    def Set_errhandler(self, handler):
        self.said.append(handler)


class World:
    def __init__(self, rank=RANKS.rank, size=RANKS.world, questions=2, most_tags=(1 << 20) - 1):
        self.rank, self.size, self.most_tags, self.questions = rank, size, most_tags, questions
        self.duplicates = []

    def Idup(self):
        self.duplicates.append(Duplicate(self.questions))
        return self.duplicates[-1], self.duplicates[-1]

    def Get_attr(self, key):
        assert key == "TAG_UB"
        return self.most_tags


@pytest.fixture
def joined(monkeypatch):
    """Of open_mpi in such a world; what it asks of the core, and of atexit, is kept."""
    kept = SimpleNamespace(wires=[], limits=[], at_exit=[])

    def join(world, timeout=20.0, threads="multiple"):
        fake = SimpleNamespace(
            **dict(COMM_WORLD=world, THREAD_MULTIPLE="multiple", ERRORS_RETURN="return", TAG_UB="TAG_UB"),
            **dict(BYTE=-1, Comm=None, Query_thread=lambda: threads, __file__="MPI.so"),
            Get_library_version=lambda: "Some MPI, 1.0\nof somebody",
            _sizeof=lambda kind: 4,
            _handleof=lambda thing: -2 if thing in world.duplicates else thing,
        )
        monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=fake))
        return mpi.open_mpi(RANKS, timeout)

    def wire(library, **facts):
        kept.wires.append((library, facts))
        return "a wire"

    monkeypatch.setattr(mpi, "_own", [])
    monkeypatch.setattr(mpi._core, "mpi_wire", wire)
    monkeypatch.setattr(mpi._core, "end_within", lambda *limit: kept.limits.append(limit))
    monkeypatch.setattr(atexit, "register", kept.at_exit.append)
    monkeypatch.setattr(atexit, "unregister", lambda call: call in kept.at_exit and kept.at_exit.remove(call))
    join.kept = kept
    return join


@pytest.mark.parametrize(("most_tags", "contexts"), [((1 << 20) - 1, (1 << 18) - 1), (None, 8191)])
def test_a_communicator_of_our_own_tells_of_errors_and_has_four_tags_a_context(joined, most_tags, contexts):
    world = World(most_tags=most_tags)
    fabric = joined(world)
    assert (fabric.name, fabric.wire, fabric.most_contexts) == ("mpi", "a wire", contexts)
    assert [duplicate.said for duplicate in world.duplicates] == [["return"]]
    handles = {"handle_bytes": 4, "communicator": (1 << 64) - 2, "byte": (1 << 64) - 1}
    assert joined.kept.wires == [("MPI.so", handles)]


def test_who_met_in_vain_goes_on_with_the_same_communicator(joined):
    world = World(questions=2000)
    for _ in range(2):
        with pytest.raises(
            errors.CollectiveTimeoutError, match=r"rank 1 of 4 waited 0\.01 s .*MPI_Comm_idup"
        ):
            joined(world, timeout=0.01)
    world.duplicates[0].questions = 0
    assert joined(world, timeout=0.01).name == "mpi"
    assert len(world.duplicates) == 1 and joined.kept.at_exit == [mpi._limit_finalize]


@pytest.mark.parametrize(("rank", "size"), [(0, 4), (1, 2), (0, 1)])
def test_who_is_another_rank_to_mpi_is_told(joined, rank, size):
    said = rf"^rank 1 of 4, as its launcher says, is rank {rank} of {size} to Some MPI, the MPI that"
    with pytest.raises(errors.UnavailableError, match=said):
        joined(World(rank, size))


def test_an_mpi_for_one_thread_at_a_time_is_refused(joined):
    with pytest.raises(errors.UnavailableError, match=r"^rank 1 of 4: MPI was initialised for one thread"):
        joined(World(), threads="serialized")


def test_an_mpi_that_mpi4py_does_not_find_is_told(monkeypatch):
    class Missing:
        @property
        def MPI(self):
            raise RuntimeError("cannot load MPI library")

    monkeypatch.setitem(sys.modules, "mpi4py", Missing())
    said = r"^rank 1 of 4: .* mpi4py does not load \(cannot load MPI library\): pip install 'gpucomm\[mpi\]'"
    with pytest.raises(errors.UnavailableError, match=said):
        mpi.open_mpi(RANKS, 20)


@pytest.mark.parametrize("by_error", [False, True])
def test_the_end_of_mpi_is_limited_where_an_error_ends_the_rank(joined, monkeypatch, by_error):
    joined(World())
    monkeypatch.delattr(sys, "last_value", raising=False)
    if by_error:
        monkeypatch.setattr(sys, "last_value", ValueError(), raising=False)
    (limit,) = joined.kept.at_exit
    limit()
    assert len(joined.kept.limits) == by_error
