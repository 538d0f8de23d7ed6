"""Emulated links: how they are described, who may join, and that results stay the same."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import pairs
from ranks import run_ranks
from reference import close
from test_collectives import expect, inputs, run

import gpucomm
from gpucomm import Communicator, _core
from gpucomm.errors import InvalidArgumentError, MismatchError
from gpucomm.launch.environment import detect
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


@pytest.mark.parametrize(("collective", "algorithm"), pairs(coded=True))
def test_coded_results_are_the_same(collective, algorithm):
    def call(comm):
        x = np.random.default_rng(comm.rank).standard_normal(3 << 14, np.float32)
        return getattr(comm, collective)(x, codec="int8", algorithm=algorithm).tobytes()

    assert run_ranks(3, call, links=_core.Links("switch", alpha=1e-6, beta=1e-10)) == run_ranks(3, call)


def test_auto_computes_with_the_links():
    links = _core.Links("chain", alpha=ALPHA, beta=1e-9, lambda_=LATENCY)
    with Communicator("local", 0, 1, region=_core.Region(1), links=links) as comm:
        assert comm.transport == "emulated(local)"
        assert (comm.links.kind, comm.links.alpha, comm.links.lambda_) == ("chain", ALPHA, LATENCY)
        assert "transport emulated(local)" in repr(comm)


OTHERS = [
    {"links": _core.Links("chain")},
    {"links": _core.Links("switch", betas=[1e-9, 2e-9])},
    {"links": _core.Links("nodes", nodes=[0, 0])},
    {"script": [(5.0, [2e-9, 1e-9], 5e-6, 0.0, 0.0)]},
    {"script": [(5.0, [1e-9, 1e-9], 5e-6, 1e-3, 0.0)]},
]


@pytest.mark.parametrize("other", [{}, {"half_duplex": True}, {"seed": 1}, *OTHERS])
def test_ranks_with_other_links_do_not_meet(other):
    region, links = _core.Region(2), _core.Links("switch")
    with Communicator("local", 1, 2, region=region, links=links):
        keywords = {"links": links} | other if other else {}
        with pytest.raises(MismatchError, match=r"rank 0 of 2 was given .*, rank 1 was not given the same"):
            Communicator("local", 0, 2, region=region, **keywords)
        Communicator("local", 0, 2, region=region, links=links).close()


def test_auto_computes_with_links_that_have_rates_of_their_own():
    """One for each link of a chain, or for each node: not for each rank."""
    links = [
        _core.Links("chain", betas=[1e-9, 2e-9]),
        _core.Links("nodes", nodes=[0, 0, 1], betas=[1e-9, 2e-9]),
        _core.Links("switch", betas=[1e-9, 2e-9, 3e-9]),
    ]

    def body(comm):
        for model in links:
            comm.set_links(model)
            assert comm.links.betas == model.betas
            assert comm.all_reduce(np.ones(9))[0] == 3

    run_ranks(3, body)


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
    ("text", "betas", "script"),
    [
        ("switch:1Gbit,rank2=100Mbit", [8, 8, 80, 8], []),
        ("switch:1Gbit, rank3=2Gbit , rank0=100kbit", [80000, 8, 8, 4], []),
        ("chain:1Gbit,link0=100Mbit", [80, 8, 8], []),
        ("nodes:1Gbit,of=3+1,node1=100Mbit", [8, 80], []),
        ("nodes:1Gbit,of=2x2,half,jitter=1us", [], []),
        ("switch:1Gbit,10s=1Gbit,5s=100Mbit", [], [(5, [80] * 4), (10, [8] * 4)]),
        ("chain:1Gbit,5s:link1=10Mbit", [], [(5, [8, 800, 8])]),
        (
            "nodes,beta=8ns,of=2x2,node0=100Mbit,500ms=500Mbit,1.5s:node0=1Gbit",
            [80, 8],
            [(0.5, [80, 16]), (1.5, [8, 16])],
        ),
    ],
)
def test_own_rates_and_scripts(text, betas, script):
    spec = parse_spec(text)
    again = parse_spec(spec.canonical)
    assert again.canonical == spec.canonical and again.changes == spec.changes
    for found in (spec.arguments(4), again.arguments(4)):
        assert found["links"].betas == pytest.approx([beta * 1e-9 for beta in betas])
        assert [phase.at for phase in found["script"]] == [at for at, _ in script]
        for phase, (_, expected) in zip(found["script"], script, strict=True):
            assert phase.betas == pytest.approx([beta * 1e-9 for beta in expected])
    if not script and not spec.half_duplex:
        assert parse_model(text, 4).betas == spec.arguments(4)["links"].betas


def test_times_change_too():
    spec = parse_emulated(
        "chain:1Gbit,latency=1ms,2s:overhead=9us,1s:latency=5ms,3s:link0=1Mbit,3s:jitter=2ms"
    )
    again = parse_spec(spec.canonical)
    assert again.canonical == spec.canonical and again.changes == spec.changes
    for described in (spec, again):
        script = described.arguments(3)["script"]
        assert [phase.at for phase in script] == [1, 2, 3]
        times = [(phase.alpha, phase.lambda_, phase.jitter) for phase in script]
        expected = [(5e-6, 5e-3, 0), (9e-6, 5e-3, 0), (9e-6, 5e-3, 2e-3)]
        assert np.array(times) == pytest.approx(np.array(expected))
        betas = np.array([phase.betas for phase in script])
        assert betas == pytest.approx(np.array([[8e-9] * 2, [8e-9] * 2, [8e-6, 8e-9]]))


def test_nodes_of_a_description():
    assert parse_spec("nodes:1Gbit,of=2x3").links.nodes == [0, 0, 0, 1, 1, 1]
    assert parse_spec("nodes:1Gbit,of=3+1").links.nodes == [0, 0, 0, 1]
    assert parse_spec("nodes:1Gbit,of=2x1").canonical == parse_spec("nodes:1Gbit,of=1+1").canonical


@pytest.mark.parametrize(
    ("text", "nodes", "sentence"),
    [
        ("switch:1Gbit,rank3=1Mbit", (), "there is no rank3: 3 ranks have 3 ranks, numbered from 0"),
        ("chain:1Gbit,5s:link2=1Mbit", (), "there is no link2: 3 ranks have 2 links, numbered from 0"),
        ("nodes:1Gbit,of=2+1,node2=1Mbit", (), "there is no node2: 3 ranks have 2 nodes, numbered from 0"),
        ("nodes:1Gbit,of=2x2", (), "are between nodes of 4 ranks together, but there are 3"),
        ("nodes:1Gbit,of=2+1", (0, 1, 1), "GPUCOMM_NODES.* says it otherwise: leave one of them out"),
    ],
)
def test_links_that_do_not_fit_the_ranks(text, nodes, sentence):
    with pytest.raises(InvalidArgumentError, match=sentence):
        parse_emulated(text).check(3, nodes)
    told = ",".join(map(str, nodes)) or None
    with pytest.raises(InvalidArgumentError, match=sentence):
        gpucomm.local(3, threads=True, links=text, nodes=told)
    environment = {"GPUCOMM_JOB": "j", "GPUCOMM_RANK": "0", "GPUCOMM_WORLD": "3", "GPUCOMM_LINKS": text}
    environment["GPUCOMM_NODES"] = told or ""
    with pytest.raises(InvalidArgumentError, match=f"GPUCOMM_LINKS: .*{sentence}"):
        detect(environment)


def test_links_of_no_ranks_are_a_sentence():
    for world in (0, -3):
        with pytest.raises(InvalidArgumentError, match=f"world must be a whole .* at least 1, got {world}"):
            parse_emulated("chain:1Gbit,link0=1Mbit").check(world)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "unknown link model ''"),
        ("é\ud800", r"unknown link model 'é\\ud800'"),
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
        ("switch:1Gbit,seed=" + "9" * 5000, "unknown setting 'seed=999"),
        ("switch:1Gbit,gamma=1ns", "gamma cannot be emulated"),
        ("switch:1Gbit,link0=1Mbit", "names a link, but of a switch each rank has a rate of its own"),
        ("switch:1Gbit,rank0=1Mbit,rank0=2Mbit", "'rank0=2Mbit' is given twice"),
        ("switch:1Gbit,1s=1Mbit,1000ms=2Mbit", "'1000ms=2Mbit' is given twice"),
        ("switch:1Gbit,rank0=0Mbit", "the bandwidth '0Mbit' must be a number above 0"),
        ("switch:1Gbit,rank0=8ns", "the bandwidth '8ns' must be"),
        ("switch:1Gbit,0s=1Mbit", "must name a time above 0"),
        ("switch:1Gbit,5=1Mbit", "time '5' must be a number with a unit"),
        ("switch:1Gbit,5s:cpu0=1Mbit", "unknown setting '5s:cpu0=1Mbit'"),
        ("switch:1Gbit,5s:beta=1ns", "unknown setting '5s:beta=1ns'"),
        ("switch:1Gbit,5s:latency=1Mbit", "time '1Mbit' must be a number with a unit"),
        ("switch:1Gbit,5s:overhead=1us,5s:alpha=1us", "'5s:alpha=1us' is given twice"),
        ("switch:1Gbit,rank-1=1Mbit", "unknown setting 'rank-1=1Mbit'"),
        ("switch:1Gbit,of=2x2", "and no others, say which ranks these have"),
        ("nodes:1Gbit", "say which ranks these have, as in of=2x4"),
        ("nodes:1Gbit,of=0x2", "of='0x2' must be NODESxRANKS"),
        ("nodes:1Gbit,of=2+", "of='2[+]' must be NODESxRANKS"),
        ("nodes:1Gbit,of=1000x1000", "of at most 65536 ranks"),
        ("switch:1e400bit", "the bandwidth '1e400bit' is beyond what a float holds"),
        ("switch:1Gbit,rank0=1e-323bit", "the bandwidth '1e-323bit' is beyond"),
        ("switch:1Gbit,5s=1e300Tbit", "the bandwidth '1e300Tbit' is beyond"),
        ("switch:1Gbit,jitter=1e400s", "time '1e400s' is beyond what a float holds"),
        (None, "links must be a text such as 'switch:1Gbit', got None"),
    ],
)
def test_bad_descriptions(text, sentence):
    with pytest.raises(InvalidArgumentError, match=sentence):
        parse_emulated(text)


def test_the_model_knows_less_than_the_emulation():
    assert parse_model("switch:1Gbit").beta == pytest.approx(8e-9)
    for more in ("half", "jitter=1us", "5s=1Mbit", "5s:latency=1ms"):
        with pytest.raises(InvalidArgumentError, match="neither half nor jitter nor what changes later"):
            parse_model(f"switch:1Gbit,{more}")
    with pytest.raises(InvalidArgumentError, match="the number of ranks must be known"):
        parse_model("switch:1Gbit,rank0=1Mbit")
    with pytest.raises(InvalidArgumentError, match="world must be a whole number of at least 1, got 'a'"):
        parse_model("switch:1Gbit", "a")


def test_links_too_fast_for_the_machine_are_marked(monkeypatch):
    monkeypatch.setattr("gpucomm.links.host.memory_bandwidth", lambda: 10e9)
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


FAST = [1e-10, 2e-10, 3e-10, 4e-10]


@pytest.mark.parametrize(
    ("kind", "more", "members", "betas", "nodes"),
    [
        ("switch", {"betas": FAST}, [3, 1], [4e-10, 2e-10], []),
        ("chain", {"betas": FAST[:3]}, [0, 2, 3], [2e-10, 3e-10], []),
        ("chain", {"betas": FAST[:3]}, [3, 0], [3e-10], []),
        ("chain", {"betas": FAST[:3]}, [2], [], []),
        ("nodes", {"betas": FAST[:2], "nodes": [0, 0, 1, 1]}, [3, 0], [2e-10, 1e-10], [0, 1]),
        ("nodes", {"betas": FAST[:2], "nodes": [0, 0, 1, 1]}, [2, 3], [2e-10], [0, 0]),
    ],
)
def test_a_group_keeps_the_rates_of_its_members(kind, more, members, betas, nodes):
    links = _core.Links(kind, alpha=1e-6, beta=1e-10, **more)
    places = len(more["betas"])

    def call(comm):
        group = comm.subset(members)
        if not group:
            return None
        with group:
            group.barrier()
            same_clock = group.emulation["began"] == comm.emulation["began"] > 0
            return group.links.betas, group.links.nodes, group.emulation["script"], same_clock

    found = run_ranks(4, call, links=links, script=[(3600.0, [5e-10] * places, 1e-6, 2e-6, 3e-6)])
    expected = (betas, nodes, [(3600.0, [5e-10] * len(betas), 1e-6, 2e-6, 3e-6)], True)
    assert found == [expected if rank in members else None for rank in range(4)]


def test_links_between_nodes_tell_the_communicator_its_nodes():
    with gpucomm.local(4, threads=True, links="nodes:1Gbit,of=3+1") as world:

        def call(comm):
            x = np.full(1 << 18, comm.rank + 1, np.float32)
            comm.freeze()  # the model's choice, nothing tried
            comm.all_reduce(x)
            inside, across = comm.split_nodes()
            with inside, across:
                inside.barrier()
                return comm.nodes, x[0], inside.world, inside.links.nodes, comm.flight_log()[0]["call"]

        for nodes, total, inside, of, log in world.run(call):
            assert (nodes, total, of) == ((0, 0, 0, 1), 10, [0] * inside)
            assert "hierarchical" in log
    links = _core.Links("nodes", nodes=[0, 1])
    with pytest.raises(InvalidArgumentError, match="emulated links between others: leave the nodes to"):
        Communicator("local", 0, 2, region=_core.Region(2), links=links, nodes=[0, 0])


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        (
            {"script": [(1.0, [1e-9], 0.0, 0.0, 0.0)]},
            "must name 2 rates from ascending times on, got 1 from 1 s on",
        ),
        ({"script": [(0.0, [1e-9] * 2, 0.0, 0.0, 0.0)]}, "ascending times on, got 2 from 0 s on"),
        ({"script": [(1.0, [1e-9] * 2, 0.0, 61.0, 0.0)]}, r"must be in \[0, 60\] s, got 61"),
        ({"script": [(1.0, [1e-9, 61.0], 0.0, 0.0, 0.0)]}, r"must be in \[0, 60\] s, got 61"),
        ({"links": _core.Links("switch", betas=[1e-9])}, "an entry for each of 2 ranks, got 1"),
        ({"links": _core.Links("nodes", nodes=[0, 0], inner_beta=1e-9)}, "inside a node must be 0"),
    ],
)
def test_bad_rates_of_a_communicator(keywords, sentence):
    how = {"links": _core.Links("switch")} | keywords
    with pytest.raises(InvalidArgumentError, match=sentence):
        Communicator("local", 0, 2, region=_core.Region(2), **how)


@pytest.mark.parametrize(("text", "said"), [("switch:9Tbit", True), ("switch:1Mbit", False)])
def test_init_says_that_links_are_too_fast(text, said, monkeypatch, caplog):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "GPUCOMM_LINKS": text}.items():
        monkeypatch.setenv(name, value)
    gpucomm.init().close()
    assert ("what is measured on them is the machine's" in caplog.text) is said
