"""Emulated links: how they are described, who may join, and that results stay the same."""

from __future__ import annotations

import pytest
from conftest import pairs
from ranks import run_ranks
from reference import close
from test_collectives import expect, inputs, run

import gpucomm
from gpucomm import Communicator, _core
from gpucomm.errors import InvalidArgumentError, MismatchError
from gpucomm.links import host_bound, parse_emulated, parse_model, parse_spec

ALPHA, LATENCY = 50e-6, 500e-6


@pytest.mark.parametrize("links", ["switch", "chain"])
@pytest.mark.parametrize(("collective", "algorithm"), pairs())
def test_results_are_the_same(collective, algorithm, links):
    """Fast emulated links, so that it is quick: the data take the same way."""
    world, model = 3, _core.Links(links, alpha=1e-6, beta=1e-10)

    def call(comm):
        found = []
        for dtype, count in (("float32", 7), ("float32", 65537), ("bool", 1000), ("float16", 0)):
            arrays, root = inputs(collective, dtype, world, count), count % world
            result = run(comm, collective, arrays[comm.rank].copy(), root, algorithm=algorithm)
            expected = expect(collective, arrays, comm.rank, root, "sum")
            assert expected is None or close(result, expected, "sum")
            found.append(None if result is None else result.tobytes())
        return found

    emulated = run_ranks(world, call, links=model, half_duplex=True, jitter=1e-5)
    assert emulated == run_ranks(world, call)


def test_auto_computes_with_the_links():
    links = _core.Links("chain", alpha=ALPHA, beta=1e-9, lambda_=LATENCY)
    with Communicator("local", 0, 1, region=_core.Region(1), links=links) as comm:
        assert comm.transport == "emulated(local)"
        assert (comm.links.kind, comm.links.alpha, comm.links.lambda_) == ("chain", ALPHA, LATENCY)
        assert "transport emulated(local)" in repr(comm)


@pytest.mark.parametrize("other", [{}, {"half_duplex": True}, {"seed": 1}, {"links": _core.Links("chain")}])
def test_ranks_with_other_links_do_not_meet(other):
    region, links = _core.Region(2), _core.Links("switch")
    with Communicator("local", 1, 2, region=region, links=links):
        keywords = {"links": links} | other if other else {}
        with pytest.raises(MismatchError, match=r"rank 0 of 2 was given .*, rank 1 was not given the same"):
            Communicator("local", 0, 2, region=region, **keywords)
        Communicator("local", 0, 2, region=region, links=links).close()


def test_links_that_cannot_be_emulated():
    for links, sentence in (
        (_core.Links("switch", gamma=1e-9), "gamma must be 0 on emulated links"),
        (_core.Links("switch", beta=61.0), r"times of emulated links must be in \[0, 60\] s, got 61"),
    ):
        with pytest.raises(InvalidArgumentError, match=sentence):
            Communicator("local", 0, 1, region=_core.Region(1), links=links)
    with pytest.raises(InvalidArgumentError, match="'emulated' goes around 'local' or 'shm'"):
        Communicator("emulated", 0, 1, region=_core.Region(1))


def test_a_description_says_all():
    spec = parse_spec("chain:400Mbit, overhead=50us,latency=0.5ms,half,jitter=20us,seed=7")
    assert (spec.links.kind, spec.half_duplex, spec.seed) == ("chain", True, 7)
    assert (spec.links.beta, spec.links.alpha) == pytest.approx((2e-8, 50e-6))
    assert (spec.links.lambda_, spec.jitter) == pytest.approx((500e-6, 20e-6))
    again = parse_spec(spec.canonical)
    assert again.canonical == spec.canonical and again.arguments(2)["jitter"] == spec.jitter
    assert parse_emulated("switch:1.5Gbit/s").links.beta == pytest.approx(8 / 1.5e9)
    assert parse_spec("switch:1Gbit").canonical == parse_spec("switch,beta=8ns").canonical


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "unknown link model ''"),
        ("ring:1Gbit", "unknown link model 'ring'"),
        ("switch", "must name a bandwidth to be emulated"),
        ("switch:", "the bandwidth '' must be a number above 0"),
        ("switch:0Gbit", "the bandwidth '0Gbit' must be a number above 0"),
        ("switch:1GB", "the bandwidth '1GB' must be"),
        ("switch:1Gbit,beta=1ns", "'beta=1ns' is given twice"),
        ("switch:1Gbit,overhead=1us,alpha=1us", "'alpha=1us' is given twice"),
        ("switch:1Gbit,latency=5", "time '5' must be a number with a unit"),
        ("switch:1Gbit,speed=5us", "unknown setting 'speed=5us'; known: alpha=TIME"),
        ("switch:1Gbit,seed=-1", "unknown setting 'seed=-1'"),
        ("switch:1Gbit,gamma=1ns", "gamma can not be emulated"),
    ],
)
def test_bad_descriptions(text, sentence):
    with pytest.raises(InvalidArgumentError, match=sentence):
        parse_emulated(text)


def test_the_model_knows_less_than_the_emulation():
    assert parse_model("switch:1Gbit").beta == pytest.approx(8e-9)
    for text in ("switch:1Gbit,half", "switch:1Gbit,jitter=1us"):
        with pytest.raises(InvalidArgumentError, match="knows neither half nor jitter"):
            parse_model(text)


def test_links_too_fast_for_the_machine_are_marked():
    assert host_bound(parse_spec("switch:100Mbit"), 4) == ""
    assert "a quarter of this machine's memory bandwidth" in host_bound(parse_spec("switch:9Tbit"), 2)
    assert "want no limit" in host_bound(parse_spec("switch,beta=0"), 2)
    with (
        pytest.warns(RuntimeWarning, match="what is measured on them is the machine's"),
        gpucomm.local(2, threads=True, links="switch:9Tbit") as world,
    ):
        assert world.run(lambda comm: comm.transport) == ["emulated(local)"] * 2


def test_a_local_world_refuses_other_things_than_text():
    with pytest.raises(InvalidArgumentError, match="links=1 must be a text"):
        gpucomm.local(2, threads=True, links=1)


def test_a_group_has_links_of_the_same_kind():
    links = _core.Links("chain", alpha=1e-6, beta=1e-10)

    def call(comm):
        with comm.split(comm.rank // 2) as group:
            group.barrier()
            return group.transport, group.links.kind, group.emulation["jitter"]

    assert run_ranks(3, call, links=links, jitter=1e-5) == [("emulated(local)", "chain", 1e-5)] * 3
