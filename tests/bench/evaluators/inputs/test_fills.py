"""What outputs hold before a call: words that are written over and over, and NaN that nothing else makes."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.fills import count_unwritten, fill, fill_words

pytestmark = pytest.mark.cpu
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
NARROW = [torch.float8_e4m3fn, torch.float8_e5m2]


def filled(dtype, size=67):
    into = torch.zeros(size * dtype.itemsize, dtype=torch.uint8)
    fill(into, fill_words(dtype)[0])
    return into.view(dtype)


def make_nans(dtype):
    """Give NaN as arithmetic makes it; 67 elements, since torch converts whole vectors and what is left otherwise."""
    nan, zero, one = (torch.full((67,), value, dtype=dtype) for value in (torch.nan, 0.0, 1.0))
    infinite = one / zero
    yield from (nan, -nan, nan.abs(), zero / zero, -(zero / zero), infinite - infinite, zero * infinite)
    yield from ((-one).sqrt(), (-one).log(), nan.exp(), nan + one, nan * nan, infinite.sin(), torch.relu(nan))
    yield torch.softmax(-infinite, 0)
    yield nan.sum().expand(67).contiguous()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("of", [*FLOATS, *NARROW], ids=str)
def test_no_arithmetic_and_no_conversion_makes_the_nan_of_a_fill(dtype, of):
    expected = torch.full((67,), torch.nan, dtype=dtype)
    for source in FLOATS:
        for value in [*make_nans(source), *([filled(source)] if source != dtype else [])]:
            got = value.to(of).to(dtype)
            assert got.isnan().all()
            for made in (got, -got, got.abs(), got * 2):
                assert count_unwritten(expected, made) == 0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_elements_that_are_nan_by_right_and_were_not_written_are_counted(dtype):
    expected = torch.ones(67, dtype=dtype)
    expected[10:20] = torch.nan
    got = filled(dtype)
    assert got.isnan().all()
    assert count_unwritten(expected, got) == 10
    got[10:16] = torch.nan
    assert count_unwritten(expected, got) == 4
    assert count_unwritten(filled(dtype), filled(dtype)) == 0  # the reference gives these very bits


@pytest.mark.parametrize("size", [0, 1, 7, 8, 19])
@pytest.mark.parametrize("offset", [0, 3, 8])
def test_rows_are_filled_with_a_word_from_their_own_beginning(size, offset):
    block = torch.zeros(256, dtype=torch.uint8)
    rows = block.as_strided((3, size), (32, 1), offset)
    fill(rows, 0x0807060504030201)
    assert rows.tolist() == [[at % 8 + 1 for at in range(size)]] * 3
    assert int(block.sum()) == int(rows.sum())
