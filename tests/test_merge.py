"""Merge policies: every tensor in exactly one message, in order, and sizes as DDP counts them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucomm import merge
from gpucomm.errors import InvalidArgumentError

SPECS = ["per_tensor", "one", "1B", "1.5KB", "512KB", "25MB", "1GB"]


@given(spec=st.sampled_from(SPECS), sizes=st.lists(st.integers(0, 2**26), max_size=30))
def test_every_tensor_is_in_one_group_in_order(spec, sizes):
    groups = merge.plan(spec, sizes)
    assert [index for group in groups for index in group] == list(range(len(sizes)))
    assert all(groups)


@given(sizes=st.lists(st.integers(0, 5000), max_size=30))
def test_a_bucket_closes_as_soon_as_it_reaches_the_cap(sizes):
    groups = merge.plan("4KB", sizes)
    for group in groups[:-1]:
        assert sum(sizes[index] for index in group) >= 4096
    for group in groups:
        assert sum(sizes[index] for index in group[:-1]) < 4096


def test_the_three_forms():
    assert merge.plan("per_tensor", [1, 2, 3]) == [[0], [1], [2]]
    assert merge.plan("one", [1, 2, 3]) == [[0, 1, 2]]
    assert merge.plan("1MB", [2**20 - 1, 1, 1]) == [[0, 1], [2]]


@pytest.mark.parametrize(
    "spec", ["", "ones", "25", "MB", "-1MB", "0MB", "0.1B", "25 XB", "25mb", "9" * 400 + "MB", 25, None]
)
def test_a_bad_specification_names_the_known_forms(spec):
    with pytest.raises(InvalidArgumentError) as error:
        merge.parse(spec)
    assert repr(spec) in str(error.value)
    for form in merge.forms():
        assert form in str(error.value)


def test_what_is_no_policy_is_not_registered():
    with pytest.raises(InvalidArgumentError, match="must be a subclass of MergePolicy, got <class 'int'>"):
        merge.register(int)
    assert all(isinstance(form, str) for form in merge.forms())


def test_a_negative_size_is_refused():
    with pytest.raises(ValueError, match="got -1 at index 1"):
        merge.plan("one", [1, -1])
