"""What outputs hold before a call: words that are written over and over, and NaN that nothing else makes."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.fills import count_unwritten, fill, fill_words
from flashinfer_bench.bench.evaluators.verdict import check_form
from tests.kit.make import make_definition
from tests.kit.nans import FLOATS, make_nans

pytestmark = pytest.mark.cpu


def filled(dtype, size=67):
    into = torch.zeros(size * dtype.itemsize, dtype=torch.uint8)
    fill(into, fill_words(dtype)[0])
    return into.view(dtype)


def test_no_arithmetic_and_no_conversion_makes_the_nan_of_a_fill():
    for made in make_nans():
        assert made.isnan().all()
        assert count_unwritten(torch.full_like(made, torch.nan), made) == 0


@pytest.mark.parametrize("of", FLOATS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_what_another_dtype_is_filled_with_is_converted_to_another_nan(of, dtype):
    made = filled(of).to(dtype)
    assert (count_unwritten(torch.full_like(made, torch.nan), made) == len(made)) is (of == dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_elements_that_are_nan_by_right_and_were_not_written_are_counted(dtype):
    expected = torch.ones(67, dtype=dtype)
    expected[10:20] = torch.nan
    got = filled(dtype)
    assert got.isnan().all()
    assert count_unwritten(expected, got) == 10
    assert count_unwritten(filled(dtype), filled(dtype)) == 0  # the reference gives these very bits


def test_a_verdict_on_what_was_not_written_names_its_rule():
    wrong = check_form(make_definition(), [filled(torch.float32)], [torch.full((67,), torch.nan)])
    assert wrong.integrity == {"rule": "unwritten", "evidence": {"output": "y", "elements": 67}}


@pytest.mark.parametrize(("size", "offset"), [(0, 0), (7, 0), (8, 8), (19, 3), (19, 8)])
def test_rows_are_filled_with_a_word_from_their_own_beginning(size, offset):
    block = torch.zeros(256, dtype=torch.uint8)
    rows = block.as_strided((3, size), (32, 1), offset)
    fill(rows, 0x0807060504030201)
    assert rows.tolist() == [[at % 8 + 1 for at in range(size)]] * 3
    assert int(block.sum()) == int(rows.sum())
