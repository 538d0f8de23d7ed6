"""Keywords that a call does not have."""

from __future__ import annotations

import numpy as np
import pytest

from gpucomm.errors import UnsupportedTypeError

X = np.ones(4)
CALLS = {
    **{call: [X] for call in ("all_gather", "all_reduce", "all_to_all", "broadcast")},
    **{call: [X] for call in ("gather", "reduce", "reduce_scatter", "scatter")},
    **{"barrier": [], "send": [X, 0], "recv": [X, 0], "sendrecv": [X, 0, X, 0]},
}
SHOWN = {0: "", 1: "numpy.ndarray, ", 2: "numpy.ndarray, 0, ", 4: "numpy.ndarray, 0, numpy.ndarray, 0, "}
NAMES = ["algoritm", "a\0b", "\ud800", "", "a b", "x: object, *, out"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("call", CALLS)
def test_an_unknown_keyword_is_one_sentence(alone, call, name):
    arguments = CALLS[call]
    told = name.encode(errors="backslashreplace").decode().replace("\0", r"\0")
    with pytest.raises(UnsupportedTypeError) as caught:
        getattr(alone, call)(*arguments, **{name: 1})
    said = str(caught.value)
    assert said.startswith(f"{call} does not take ({SHOWN[len(arguments)]}{told}=1); it is ")
    assert said.endswith("(rank 0 of 1)") and "\n" not in said
