"""Who measures with whom: rounds of groups that have no rank in common, so that each round runs at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain, zip_longest

__all__ = ["MOST_ROUNDS", "Group", "leaders", "plan_rounds"]

Group = tuple[int, ...]  # ranks of one measurement, ascending: a pair, or all of a node

MOST_ROUNDS = 15  # all pairs of 16 ranks; in larger worlds each rank meets so many others


def plan_rounds(nodes: Sequence[int], together: Collection[int]) -> list[list[Group]]:
    """The rounds of a world.

    Args:
        nodes: the node of each rank.
        together: nodes whose ranks are measured as one group.

    Returns:
        First pairs of nodes, each by its first rank, then groups inside nodes.
    """
    members = [[rank for rank, node in enumerate(nodes) if node == own] for own in sorted(set(nodes))]
    across = _tournament(leaders(nodes))
    inside = [
        [[tuple(ranks)]] if node in together and len(ranks) > 1 else _tournament(ranks)
        for node, ranks in enumerate(members)
    ]
    return [*across, *(list(chain(*some)) for some in zip_longest(*inside, fillvalue=()))]


def leaders(nodes: Sequence[int]) -> list[int]:
    """The first rank of each node."""
    return [list(nodes).index(node) for node in sorted(set(nodes))]


def _tournament(players: Sequence[int]) -> list[list[Group]]:
    """Everyone meets everyone, in rounds: all but one stand in a circle that turns by one place a round."""
    if len(players) < 2:
        return []
    circle: list[int | None] = [*players, *([None] if len(players) % 2 else [])]
    rounds = []
    for _ in range(min(len(circle) - 1, MOST_ROUNDS)):
        facing = zip(circle[: len(circle) // 2], reversed(circle), strict=False)
        rounds.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return [list[Group](pairs) for pairs in rounds]
