"""Keywords that a call does not have."""

from __future__ import annotations

import numpy as np
import pytest

from gpucomm import Communicator, _core
from gpucomm.errors import UnsupportedTypeError

COLLECTIVES = [
    *("all_gather", "all_reduce", "all_to_all", "barrier", "broadcast"),
    *("gather", "reduce", "reduce_scatter", "scatter"),
]
NAMES = ["algoritm", "a\0b", "\ud800", "", "a b", "x: object, *, out"]


@pytest.fixture
def alone():
    with Communicator("local", 0, 1, region=_core.Region(1)) as comm:
        yield comm


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("call", COLLECTIVES)
def test_an_unknown_keyword_is_one_sentence(alone, call, name):
    arguments = [] if call == "barrier" else [np.ones(4)]
    told = name.encode(errors="backslashreplace").decode().replace("\0", r"\0")
    with pytest.raises(UnsupportedTypeError) as caught:
        getattr(alone, call)(*arguments, **{name: 1})
    said = str(caught.value)
    assert said.startswith(f"{call} does not take ({'numpy.ndarray, ' if arguments else ''}{told}=1); it is ")
    assert said.endswith("(rank 0 of 1)") and "\n" not in said


def test_a_keyword_that_is_no_utf_8_ends_no_process(alone):
    for name in {*dir(_core.Communicator)} - set(dir(object)) - {"_pybind11_conduit_v1_"}:
        if callable(function := getattr(_core.Communicator, name)):
            with pytest.raises((TypeError, UnicodeEncodeError)):
                function(alone, **{"\ud800": 1})
    with pytest.raises((TypeError, UnicodeEncodeError)):
        _core.copy_pack(**{"\ud800": 1})
    assert not alone.closed
