"""The papers that can be reproduced: name -> the module that holds its `PAPER`."""

from __future__ import annotations

import importlib

from gpucomm.errors import InvalidArgumentError
from gpucomm.reproduce.claims import Paper

__all__ = ["PAPERS", "find"]

PAPERS = {
    "linear-pipelining": "gpucomm.reproduce.linear_pipelining",
    "compressed-collectives": "gpucomm.reproduce.compressed_collectives",
}


def find(name: str) -> Paper:
    """The paper of a name.

    Raises:
        InvalidArgumentError: there is none.
    """
    if name not in PAPERS:
        raise InvalidArgumentError(f"unknown paper {name!r}; known: {', '.join(PAPERS)}")
    paper: Paper = importlib.import_module(PAPERS[name]).PAPER
    return paper
