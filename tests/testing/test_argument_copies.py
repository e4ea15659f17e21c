"""Rotated calls: copies have the values, strides and overlaps of the given arguments, and are enough to be cold."""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.testing.rotation import RotationRefused, check_cold, rotate

pytestmark = pytest.mark.cpu


def rotated(*args, calls=100, l2_bytes=100, free_bytes=10**18):
    """Return the launches of a call that returns its arguments."""
    cpu = torch.device("cpu")
    device = SimpleNamespace(device=cpu, l2_bytes=l2_bytes, free_bytes=lambda: free_bytes)
    return rotate(partial(lambda *args: args, *args), device, calls)


def copies(*args):
    return rotated(*args, calls=2)[1]()


@pytest.mark.parametrize("dtype", [torch.bool, torch.float8_e4m3fn])
def test_a_copy_has_the_values_and_strides_of_its_original(dtype):
    original = torch.arange(64).to(dtype)[3:33].view(5, 2, 3).permute(2, 0, 1)[:, ::2]
    (copy,) = copies(original)
    assert torch.equal(copy.float(), original.float())
    assert (copy.stride(), copy.storage_offset()) == (original.stride(), 3)
    assert copy.data_ptr() != original.data_ptr()


def test_tensors_in_nested_arguments_are_copied_and_others_stay():
    weight = torch.nn.Parameter(torch.ones(4))
    ((first, three), named) = copies([weight, 3], {"product": (weight * 2, "text")})
    assert (first.tolist(), first.requires_grad, three, first is weight) == ([1] * 4, True, 3, False)
    product, text = named["product"]
    assert (product.tolist(), product.requires_grad, text) == ([2] * 4, True, "text")


def test_between_two_uses_of_a_copy_the_others_fill_the_cache_three_times():
    for size, sets in ((100, 31), (1000, 4), (5000, 2)):
        assert len(rotated(torch.empty(size, dtype=torch.uint8), l2_bytes=1000)) == sets


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "no GPU tensors among the arguments"),
        ((torch.ones(3).to_sparse(),), "layout torch.sparse_coo, which cannot be copied"),
        ((torch.ones(2, dtype=torch.complex64).conj(),), "a lazy view, which"),
    ],
)
def test_a_rotation_that_cannot_be_is_refused_with_the_reason(args, words):
    with pytest.raises(RotationRefused, match=words):
        rotated(*args)


@pytest.mark.parametrize("times_us", [(9.81, 9, 10), (100, 100, 101), (1.5, 1.5, 1.65), (9.79, 9, 10)])
def test_a_rotation_worked_if_calls_are_slow_as_after_a_flush_or_a_flush_changes_nothing(times_us):
    is_warm = times_us[0] == 9.79
    with pytest.raises(RotationRefused, match="something beside them") if is_warm else nullcontext():
        check_cold(
            **{name: us / 1e3 for name, us in zip(["rotated_ms", "warm_ms", "flushed_ms"], times_us, strict=True)}
        )
