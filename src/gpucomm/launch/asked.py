"""What the environment asks of a job, whoever launches it: its nodes, its links, the same bits each time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from gpucomm.errors import InvalidArgumentError

__all__ = ["asked_links", "deterministic", "numbered", "parse_nodes"]

_MOST_RANKS = 1 << 16


def parse_nodes(text: str, world: int | None = None) -> tuple[int, ...]:
    """The node of each rank: from NODESxRANKS, as in 2x4, or from the list itself, as in 0,0,1.

    Args:
        text: the description; "" is the empty tuple.
        world: how many ranks there are; None: as many as the text says.

    Raises:
        InvalidArgumentError: the text is neither, or does not fit the world.
    """
    if not text.strip():
        return ()
    try:
        if "x" in text:
            count, each = (int(part) for part in text.split("x"))
            told = count * each if count > 0 and each > 0 else 0
            nodes = [rank // each for rank in range(told if told <= (world or _MOST_RANKS) else 0)]
        else:
            nodes = [int(part) for part in text.split(",")]
            told = len(nodes) if min(nodes) >= 0 else 0
    except ValueError:
        told = 0
    if not told or (world is None and told > _MOST_RANKS):
        raise InvalidArgumentError(
            f"nodes {text!r} must be NODESxRANKS, as in 2x4, or the node of each rank, as in 0,0,1, of at"
            f" most {_MOST_RANKS} ranks"
        )
    if world is not None and told != world:
        raise InvalidArgumentError(
            f"nodes {text!r} (NODESxRANKS, or the node of each rank) are of {told} ranks together, but there"
            f" are {world}"
        )
    return tuple(numbered(nodes))


def deterministic(environ: Mapping[str, str]) -> bool:
    """Whether GPUCOMM_DETERMINISTIC asks for communicators that measure and learn nothing.

    Raises:
        InvalidArgumentError: it is neither 0 nor 1.
    """
    value = environ.get("GPUCOMM_DETERMINISTIC", "").strip() or "0"
    if value not in ("0", "1"):
        raise InvalidArgumentError(f"GPUCOMM_DETERMINISTIC={value!r} must be 0 or 1")
    return value == "1"


def numbered(nodes: Sequence[Hashable]) -> list[int]:
    """The same nodes, called 0, 1, ... in the order of their first ranks."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(node, len(known)) for node in nodes]


def asked_links(environ: Mapping[str, str], world: int, nodes: Sequence[int]) -> str:
    """The links that GPUCOMM_LINKS asks for, in the canonical text of their description; "": none.

    Args:
        environ: the environment.
        world: how many ranks there are.
        nodes: the node of each where that is told, else empty.

    Raises:
        InvalidArgumentError: it describes no links, or none between so many ranks.
    """
    text = environ.get("GPUCOMM_LINKS", "").strip()
    if not text:
        return ""
    from gpucomm.links import parse_emulated

    try:
        spec = parse_emulated(text)
        spec.check(world, nodes)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"GPUCOMM_LINKS: {error}") from None
    return spec.canonical
