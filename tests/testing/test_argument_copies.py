"""Copies of a call's arguments: values, strides and overlaps are kept, and no byte too many is copied."""

from collections import namedtuple
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.testing.arguments import (
    ALIGNMENT,
    NotCopyable,
    bytes_of,
    copy_tensors,
    find_regions,
    find_tensors,
    name_outside_tensors,
    replace_tensors,
)
from flashinfer_bench.testing.rotation import Rotation, RotationRefused, count_sets, why_not_cold

pytestmark = pytest.mark.cpu
Pair = namedtuple("Pair", "left right")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
)
def test_a_copy_has_the_values_and_strides_of_its_original(shape, random, dtype):
    base = torch.arange(5**4 * 2).to(dtype)
    order = random.sample(range(len(shape)), len(shape))
    strides = [0] * len(shape)
    step = random.choice([1, 2])
    for axis in order:
        strides[axis], step = step, step * shape[axis]
    original = base.as_strided(shape, strides, random.choice([0, 1, 7]) % (base.numel() - step + 1))
    (copy,) = copy_tensors([original])
    assert torch.equal(copy, original)
    assert (copy.stride(), copy.dtype) == (original.stride(), original.dtype)
    assert copy.data_ptr() != original.data_ptr()


def test_tensors_that_overlap_do_so_in_the_copy():
    base = torch.zeros(4, 6)
    query, keys, whole = base[:, :2], base[:, 2:4], base
    copies = copy_tensors([query, keys, whole])
    copies[0].fill_(1)
    assert copies[2].sum() == 8
    assert (base.sum(), copies[1].sum()) == (0, 0)
    assert bytes_of([query, keys, whole]) == base.nbytes


def test_a_slice_costs_a_slice():
    cache = torch.zeros(1000, 16)
    assert bytes_of([cache[10:12], cache[500:501]]) == 3 * 16 * 4
    copies = copy_tensors([cache[10:12], cache[500:501]])
    assert max(copy.untyped_storage().nbytes() for copy in copies) <= 2 * 16 * 4 + ALIGNMENT


def test_an_expanded_tensor_is_copied_as_it_lies():
    (copy,) = copy_tensors([torch.ones(1, 3).expand(1000, 3)])
    assert (copy.shape, copy.stride()) == ((1000, 3), (0, 1))
    assert copy.untyped_storage().nbytes() < 12 + ALIGNMENT


def test_tensors_are_found_and_replaced_in_nested_arguments():
    first, second = torch.ones(1), torch.ones(2)
    value = ([first, 3], {"pair": Pair(second, "text")}, None)
    assert list(find_tensors(value)) == [first, second]
    changed = replace_tensors(value, {id(second): first})
    assert changed[1]["pair"] == Pair(first, "text")
    assert changed[0][0] is first


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2).to_sparse(), torch.ones(2, dtype=torch.complex64).conj()],
    ids=["sparse", "conjugated"],
)
def test_what_is_no_plain_tensor_is_not_copied(tensor):
    with pytest.raises(NotCopyable):
        copy_tensors([tensor])


def test_a_partial_binds_tensors_that_no_rotation_reaches():
    bound = partial(torch.add, torch.ones(2), other=torch.ones(2))
    assert name_outside_tensors(bound, "cpu") == ["argument 0 of a partial", "other"]
    assert name_outside_tensors(bound, "cuda") == []
    assert name_outside_tensors(torch.add, "cpu") == []


def test_sets_are_made_when_they_are_used_and_used_in_turn():
    seen, evictions = [], []
    data = torch.ones(2)
    call = partial(lambda x, scale: seen.append(x.data_ptr()), data, scale=2)
    rotation = Rotation(call, [data], sets=3, evict=lambda: evictions.append(1))
    for index in range(2):
        rotation.supply(index)()
    assert (rotation.used, len(evictions), seen[0]) == (2, 1, data.data_ptr())
    for index in range(2, 7):
        rotation.supply(index)()
    assert (rotation.used, len(set(seen)), seen[3] == seen[0]) == (3, 3, True)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 10**8))
def test_between_two_uses_of_a_set_the_others_fill_the_cache_three_times(size, l2_bytes):
    data = torch.empty(size, dtype=torch.uint8)
    sets = count_sets(print, [data], l2_bytes=l2_bytes, free_bytes=10**18, calls=100)
    assert (sets - 1) * data.nbytes >= 3 * l2_bytes
    assert (sets - 2) * data.nbytes < 3 * l2_bytes


def test_copies_that_no_call_uses_need_no_memory():
    data = torch.ones(250)  # 1 kB, 31 sets of it for an L2 of 10 kB
    question = {"l2_bytes": 10_000, "free_bytes": 20_000}
    assert count_sets(print, [data], calls=10, **question) == 31
    with pytest.raises(RotationRefused, match="30 copies"):
        count_sets(print, [data], calls=100, **question)


@pytest.mark.parametrize(
    ("rotated", "warm", "flushed", "is_cold"),
    [
        (6_500, 4_600, 6_500, True),
        (4_650, 4_600, 6_500, False),
        (9_000, 4_600, 6_500, True),
        (100_000, 100_000, 101_000, True),
        (1_500, 1_500, 1_650, True),
    ],
    ids=["as flushed", "as warm", "slower than flushed", "bound by arithmetic", "within the noise"],
)
def test_three_timings_tell_whether_a_rotation_worked(rotated, warm, flushed, is_cold):
    reason = why_not_cold(rotated_ns=rotated, warm_ns=warm, flushed_ns=flushed)
    assert (reason is None) == is_cold


def test_a_copy_lies_as_its_original_does():
    original = torch.zeros(200)[3:]
    (copy,) = copy_tensors([original])
    assert copy.data_ptr() - copy.untyped_storage().data_ptr() == original.data_ptr() % ALIGNMENT


def test_neighbours_that_do_not_overlap_are_copied_apart():
    base = torch.zeros(8)
    assert len(find_regions([base[:4], base[4:]])) == 2
    assert len(find_regions([base[:5], base[4:]])) == 1


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_copy_asks_for_gradients_as_its_original_does(requires_grad):
    (copy,) = copy_tensors([torch.zeros(4, requires_grad=requires_grad)])
    assert copy.requires_grad == requires_grad


def test_a_negated_view_is_refused():
    with pytest.raises(NotCopyable, match="negated view"):
        copy_tensors([torch._neg_view(torch.ones(4))])


GLOBAL = torch.ones(4)


class Adds:
    """Its method reads a global tensor."""

    def add(self, data):
        return data + GLOBAL


def test_what_a_method_reads_beside_its_object_is_named():
    assert name_outside_tensors(Adds().add, "cpu") == ["GLOBAL"]
