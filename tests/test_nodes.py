"""The hierarchical algorithm and what chooses it, over all small shapes of nodes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from conftest import ALGORITHMS, ROOTED, pairs
from ranks import run_ranks
from reference import close
from test_collectives import expect, inputs, run

import gpucomm
from gpucomm import _core
from gpucomm.errors import InvalidArgumentError

ACROSS = [pair for pair in pairs() if ALGORITHMS[pair[1]]["across_nodes"]]


def numbered(nodes):
    """Whether nodes are called 0, 1, ... in the order of their first ranks."""
    return all(node <= max(nodes[:rank], default=-1) + 1 for rank, node in enumerate(nodes))


def shapes(world):
    """Every way to put ranks on up to 4 nodes, also where a node's ranks are no neighbours."""
    return [list(nodes) for nodes in product(range(4), repeat=world) if numbered(nodes)]


@pytest.mark.parametrize(("collective", "algorithm"), ACROSS)
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 6])
def test_every_plan_is_valid(collective, algorithm, world):
    for number, nodes in enumerate(shapes(world)):
        for root in {0, number % world, world - 1} if collective in ROOTED else {0}:
            for segments in (1, 4):
                in_place = collective == "broadcast" or bool(number % 2)
                plans = _core.build_plans(collective, algorithm, world, root, segments, in_place, nodes)
                assert _core.verify(plans).lossy_passes == 0


def sent_across(plans, nodes, count):
    """Elements that leave each node."""
    sent = [0] * (max(nodes) + 1)
    for rank, plan in enumerate(plans):
        offsets = plan.layout(count)
        for step in plan.steps:
            if step.kind == "send" and nodes[step.peers[0]] != nodes[rank]:
                sent[nodes[rank]] += offsets[step.piece + step.pieces] - offsets[step.piece]
    return sent


@pytest.mark.parametrize(
    "nodes",
    [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 2, 3], [0, 0, 0, 1], [0, 1, 1, 2, 2, 2], [0, 0, 1, 1, 2, 2, 3, 3]],
)
@pytest.mark.parametrize("segments", [1, 3])
def test_a_nodes_link_carries_the_least_that_it_can(nodes, segments):
    count, world, n = 5040 * 12, len(nodes), max(nodes) + 1
    plans = _core.build_plans("all_reduce", "hierarchical", world, segments=segments, nodes=nodes)
    assert sent_across(plans, nodes, count) == [2 * (n - 1) * count // n] * n
    chained = _core.build_plans("broadcast", "hierarchical", world, root=world - 1, nodes=nodes)
    assert sorted(sent_across(chained, nodes, count)) == [0] + [count] * (n - 1)


@pytest.mark.parametrize(("collective", "algorithm"), ACROSS)
@pytest.mark.parametrize("nodes", [[0, 0, 1, 1], [0, 1, 0, 2, 1], [0, 0, 0, 1], [0, 1, 2]])
def test_results(collective, algorithm, nodes):
    world = len(nodes)

    def body(comm):
        wrong = []
        for count, segments, root in ((0, 1, 0), (1, 3, 1), (1000, 2, 2), (65_537, 5, world - 1)):
            arrays = inputs(collective, "float32", world, count)
            how = {"algorithm": algorithm, "segments": segments}
            result = run(comm, collective, arrays[comm.rank].copy(), root, **how)
            expected = expect(collective, arrays, comm.rank, root, "sum")
            if expected is not None and not close(result, expected, "sum"):
                wrong.append((count, segments, root))
        return wrong

    assert run_ranks(world, body, nodes=nodes) == [[]] * world


@pytest.mark.parametrize("nodes", [[0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 0, 2, 1]])
def test_all_ranks_have_the_same_bits_twice(nodes):
    def body(comm):
        noise = np.random.default_rng(comm.rank).standard_normal(10_001).astype(np.float32)
        how = {"op": "mean", "algorithm": "hierarchical", "segments": 3}
        first, second = (comm.all_reduce(noise.copy(), **how).tobytes() for _ in range(2))
        assert first == second
        return first

    assert len(set(run_ranks(len(nodes), body, nodes=nodes))) == 1


def test_split_nodes():
    def body(comm):
        inside, across = comm.split_nodes()
        members = [group.all_gather(np.array([comm.rank])).tolist() for group in (inside, across)]
        return members, inside.nodes, across.nodes

    assert run_ranks(5, body, nodes=[0, 1, 0, 2, 1]) == [
        ([[0, 2], [0, 1, 3]], (0, 0), (0, 1, 2)),
        ([[1, 4], [0, 1, 3]], (0, 0), (0, 1, 2)),
        ([[0, 2], [2, 4]], (0, 0), (0, 1)),
        ([[3], [0, 1, 3]], (0,), (0, 1, 2)),
        ([[1, 4], [2, 4]], (0, 0), (0, 1)),
    ]


@pytest.mark.parametrize("threads", [True, pytest.param(False, marks=pytest.mark.processes)])
def test_a_local_world_of_nodes(threads):
    with gpucomm.local(3, threads=threads, nodes="0,0,1") as world:
        assert world.run(lambda comm: (comm.nodes, comm.split_nodes()[0].world)) == [
            ((0, 0, 1), 2),
            ((0, 0, 1), 2),
            ((0, 0, 1), 1),
        ]


@pytest.mark.parametrize(
    ("nodes", "sentence"), [("2x2", "nodes '2x2' .* are of 4 ranks"), (2, "nodes=2 must be a text")]
)
def test_a_local_world_of_nodes_that_mean_nothing(nodes, sentence):
    with pytest.raises(InvalidArgumentError, match=sentence):
        gpucomm.local(3, threads=True, nodes=nodes)


def between(beta, inner_beta):
    inside = {"inner_alpha": 2e-6, "inner_lambda": 1e-6, "inner_beta": inner_beta}
    return _core.Links("nodes", alpha=20e-6, lambda_=30e-6, beta=beta, nodes=[0, 0, 1, 1, 2, 2], **inside)


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "reduce"])
def test_auto_takes_hierarchical_where_links_between_nodes_are_slow(collective):
    slow = between(beta=1 / 100e6, inner_beta=1 / 2e9)
    size = (16 << 20) - 1
    algorithm, segments, seconds = _core.choose(collective, size, 6, slow, nodes=slow.nodes)
    assert algorithm == "hierarchical"
    floor = (4 / 3 if collective == "all_reduce" else 1) * size / 100e6  # of any algorithm, on a node's link
    assert floor <= seconds < 1.3 * floor
    assert segments > 1


def test_auto_never_takes_it_on_one_node():
    links = _core.Links("switch", alpha=2e-6, lambda_=1e-6, beta=1 / 5e9)
    for size in (8, 1 << 10, 1 << 20, 64 << 20):
        assert _core.choose("all_reduce", size, 4, links)[0] != "hierarchical"
