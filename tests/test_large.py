"""Messages beyond 2^31 and 2^32 bytes and elements, where sizes of 32 bits would wrap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpucomm

pytestmark = pytest.mark.processes

LONG = (1 << 31) + (1 << 20) + 5  # bytes, and elements
BORDERS = (0, 1 << 31, LONG, 1 << 32)
NEEDED_GIB = 5.0  # the arrays take 4.1 GiB at most: of one that is only read, the zeros take no memory


def available_gib() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / (1 << 20)


@pytest.fixture(scope="module")
def world():
    if (there := available_gib()) < NEEDED_GIB:
        pytest.skip(f"{NEEDED_GIB:g} GiB of memory are needed, {there:.1f} GiB are available")
    with gpucomm.local(2, timeout=100) as world:
        yield world


def marks(size):
    """Numbers at the ends and at the borders, by their places; everywhere else are zeros."""
    places = [b + i for b in (*BORDERS, size) for i in range(-3, 3) if 0 <= b + i < size]
    return dict(zip(places, range(1, 100), strict=False))


def marked(size, x=None):
    x = np.zeros(size, np.uint8) if x is None else x
    for place, number in marks(size).items():
        x[place] = number
    return x


def wrong(x, expected):
    """The places where x has not the expected number, and whether anything is elsewhere."""
    found = [place for place, number in expected.items() if x[place] != number]
    x[list(expected)] = 0
    return found + (["elsewhere"] if x.view(np.bool_).any() else [])


def all_reduce(comm):
    x = marked(LONG, np.full(LONG, 0, np.uint8))  # on huge pages, which np.zeros has not
    comm.all_reduce(x, algorithm="linear_pipeline", segments=1)  # every fold is of all elements
    return wrong(x, {place: 2 * number for place, number in marks(LONG).items()})


def send(comm):
    if comm.rank == 0:
        comm.send(marked(LONG), 1)
        return []
    x = np.full(LONG, 99, np.uint8)
    comm.recv(x, 0)
    return wrong(x, marks(LONG))


def scatter(comm):
    """Of more than 2^32 bytes, of which rank 0's stay where they are."""
    if comm.rank == 0:
        x = marked(2 * LONG)
        comm.scatter(x, out=x[:LONG])
        return wrong(x, marks(2 * LONG))
    x = np.full(LONG, 99, np.uint8)
    comm.scatter(None, out=x)
    return wrong(x, {place - LONG: number for place, number in marks(2 * LONG).items() if place >= LONG})


@pytest.mark.parametrize("call", [all_reduce, send, scatter])
def test_large(world, call):
    assert world.run(call) == [[], []]
