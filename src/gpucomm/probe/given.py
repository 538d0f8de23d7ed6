"""The figures of emulated links: as they were asked for."""

from __future__ import annotations

import numpy as np

from gpucomm import _core
from gpucomm.comm import Communicator
from gpucomm.probe.figures import Figures

__all__ = ["given"]


def given(comm: Communicator) -> Figures:
    """What the links of a communicator are emulated as, of each pair."""
    world, links = comm.world, comm.links
    table = np.full((3, world, world), np.nan)
    for a in range(world):
        for b in range(a):
            table[:, a, b] = table[:, b, a] = _pair(links, b, a)
    alpha, latency, beta = table
    return Figures(
        transport=comm.transport,
        nodes=tuple(comm.nodes),
        alpha=alpha,
        latency=latency,
        beta=beta,
        rates={"reduce": links.gamma},
    )


def _pair(links: _core.Links, a: int, b: int) -> tuple[float, float, float]:
    """Alpha, latency and beta between a and b, which is above: the slowest of what a message takes."""
    if links.kind == "nodes" and links.nodes[a] == links.nodes[b]:
        return links.inner_alpha, links.inner_lambda, links.inner_beta
    ports = range(a, b) if links.kind == "chain" else (a, b)
    if links.kind == "nodes":
        ports = (links.nodes[a], links.nodes[b])
    return links.alpha, links.lambda_, max(links.betas[port] if links.betas else links.beta for port in ports)
