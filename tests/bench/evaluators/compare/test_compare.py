"""The comparison: the failing elements, the counts and reports, and the description of a wrong output."""

import math
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.bench.evaluators.compare import kernel_cache, outputs
from flashinfer_bench.bench.evaluators.compare.outputs import compare, find_failing
from flashinfer_bench.bench.evaluators.compare.pattern import describe_pattern, describe_problem
from flashinfer_bench.bench.evaluators.compare.tolerance import Tolerance

pytestmark = pytest.mark.cpu
USUAL, EXACT = Tolerance(rtol=1e-2, atol=1e-2), Tolerance(0.0, 0.0)
MOSTLY, SUMMED = replace(USUAL, required_matched_ratio=0.9), replace(USUAL, is_sum=True)
TOLERANCES = [USUAL, EXACT, MOSTLY, SUMMED, Tolerance(0.5, 0.0, 0.5, ignores_shared_zeros=True)]
NAN, INF = math.nan, math.inf
ODD = [0.0, -0.0, 0.001, 0.005, 1.0, 1.005, 1.015, 1.5, 4.0, 6.0, -2.0, 100.0, 3e38, -3e38, 1e-40, NAN, INF, -INF]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.uint16, torch.uint64, torch.bool, "e8m0", "packed"]


def vector(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


def convert(side, dtype):
    if isinstance(dtype, torch.dtype):
        return side.to(dtype) if dtype.is_floating_point else side.nan_to_num(0, 99, -99).clamp(0, 99).to(dtype)
    whole = side.nan_to_num(0, 9, -9).clamp(-9, 9)
    if dtype == "packed":
        return (whole * 14).to(torch.int8).view(torch.float4_e2m1fn_x2)
    return (127 + whole).to(torch.uint8).view(torch.float8_e8m0fnu)


@given(
    st.lists(st.tuples(st.sampled_from(ODD), st.sampled_from(ODD)), min_size=1, max_size=200),
    st.sampled_from(TOLERANCES),
    st.sampled_from(DTYPES),
    st.integers(1, 6),
)
@settings(max_examples=100, deadline=None)
def test_the_rule_is_the_one_that_is_written_down_in_any_chunks(elements, tolerance, dtype, chunks):
    expected, got = (convert(vector(*side), dtype) for side in zip(*elements, strict=True))
    found = compare(expected, got, tolerance)
    with patch.dict(outputs.CHUNK_ELEMENTS, cpu=chunks * 32):
        assert repr(compare(expected, got, tolerance)) == repr(found)
    assert found.mismatched == int(find_failing(expected, got, tolerance).sum())
    if dtype is torch.float32:

        def matches(left, right):
            if not math.isfinite(left):
                return left == right or (math.isnan(left) and math.isnan(right))
            both, error = (tolerance.atol, tolerance.rtol * abs(left)), abs(right - left)
            return error <= (sum(both) if tolerance.is_sum else max(both))

        pairs = list(zip(expected.tolist(), got.tolist(), strict=True))
        failing = [pair for pair in pairs if not matches(*pair)]
        assert found.mismatched == len(failing)
        assert found.nonfinite_mismatched == sum(not all(map(math.isfinite, pair)) for pair in failing)
        alike = sum(left == right == 0 or (left != left and right != right) for left, right in pairs)
        assert found.shared_zeros == (alike if tolerance.ignores_shared_zeros else 0)


TWOS = torch.full((100,), 2.0)
DRAWN = torch.randn(100, 64, generator=torch.Generator().manual_seed(0))
ZERO_ROW = DRAWN.index_fill(0, torch.tensor(3), 0.0)
NINE = torch.ones(4, 5).index_put((torch.tensor(2), torch.tensor(3)), vector(9.0)[0])
BOOLS = [vector(1, one, 0, dtype=torch.uint8).view(torch.bool) for one in (1, 0xA5)]
PACKED = [vector(0x21, one, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)[None] for one in (0x43, 0x73)]


def spoilt(count, value):
    return torch.where(torch.arange(100) < count, value, TWOS)


def whole(dtype, *values):
    return (torch.tensor([one] * 96, dtype=dtype) for one in values)


@pytest.mark.parametrize(
    ("expected", "got", "tolerance", "parts"),
    [
        (vector(1.0, 2.0), vector(1.0, NAN), MOSTLY, "1 of 2 elements are nan or inf"),
        (vector(1.0, 2.0), vector(1.0, NAN), USUAL, "usual causes: elements never written (nan), an overflow"),
        (vector(INF, 1.0), vector(-INF, INF), USUAL, "2 of 2 elements"),
        (vector(1.0, 1.0), vector(3e38, NAN), USUAL, "worst at [1]: expected 1, got nan"),  # 3e38 / 0.01 overflows
        (vector(1, 1), vector(NAN, NAN), USUAL, "all 2 elements are nan, as those of an output that was never written"),
        (
            *(torch.ones(4, 5), NINE, USUAL),
            "output 'out': 1 of 20 elements differ; worst at [2, 3]: expected 1, got 9 (abs error 8, rel error 8); "
            "matched ratio 0.95, required 1, atol=0.01, rtol=0.01",
        ),
        (vector(1000.0, 0.0), vector(1020.0, 0.5), SUMMED, "worst at [1]"),  # the furthest beyond its bound
        (vector(1.0), vector(1.015), USUAL, "1 of 1"),  # beyond the larger of both
        (vector(1.0), vector(1.015), SUMMED, None),  # within their sum
        (TWOS, spoilt(11, 2.5), MOSTLY, "11 of 100 elements differ"),
        (TWOS, spoilt(10, 2.5), MOSTLY, None),
        (TWOS, spoilt(1, 99.0), MOSTLY, "largest error, 97, is over max_error_cap=2 times the largest expected 2"),
        (TWOS, spoilt(1, 2.015), replace(USUAL, max_absolute_error=0.01), "is over 0.01"),
        (DRAWN, DRAWN.index_fill(0, torch.tensor(3), 0.25), MOSTLY, "equal, wrong values at [3, 0] looks unwritten"),
        (ZERO_ROW, ZERO_ROW + torch.eye(100, 64), MOSTLY, None),  # equal neighbours that are right
        (*BOOLS, USUAL, "worst at [1]: expected 1, got 165"),  # a byte that was never written
        (*PACKED, USUAL, "differ"),
        (vector(1.0, dtype=torch.float64), vector(1.0 + 1e-12, dtype=torch.float64), Tolerance(0.0, 1e-13), "1 of 1"),
        *((torch.zeros(shape), torch.zeros(shape), EXACT, None) for shape in ((), (3, 0, 2))),
        (*whole(torch.uint64, 2**64 - 6, 2**64 - 5), Tolerance(1.0, 1e9), f"got {2**64 - 5} (abs error 1,"),
        (*whole(torch.uint8, 3, 250), Tolerance(1.0, 1e9), "expected 3, got 250 (abs error 247,"),
    ],
)
def test_the_description_of_an_output(expected, got, tolerance, parts):
    with patch.dict(outputs.CHUNK_ELEMENTS, cpu=64):
        problem = compare(expected, got, tolerance, output="out").problem()
    assert problem is None if parts is None else parts in problem


@pytest.mark.parametrize(
    ("dtype", "shared"),
    [(torch.float32, 0.0), (torch.uint8, 0), (torch.float8_e4m3fn, NAN), (torch.float8_e8m0fnu, 2.0**-127)],
)
def test_shared_zeros_do_not_count_for_the_ratio_if_they_are_ignored(dtype, shared):
    expected = torch.full((1000,), shared)
    expected[:20] = 1.0
    got = expected.clone()
    got[:2] = 2.0
    usual = Tolerance(0.1, 0.1, required_matched_ratio=0.95)
    expected, got = expected.to(dtype), got.to(dtype)
    assert compare(expected, got, usual).problem() is None
    strict = replace(usual, ignores_shared_zeros=True)
    problem = compare(expected, got, strict).problem()
    assert "2 of the 20 elements that are not zero on both sides differ" in problem
    assert compare(expected, got, replace(strict, required_matched_ratio=0.9)).problem() is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
def test_a_comparison_finds_the_same_on_both_devices(dtype):
    expected = torch.randn(700, 77, generator=torch.Generator().manual_seed(0))
    got = torch.where(torch.arange(77) % 9 == 0, expected * 1.5, expected)
    expected[7], got[7], got[9], expected[11] = NAN, NAN, 0.0, INF
    sides = [convert(side, dtype) for side in (expected, got)]
    found = [compare(*(side.to(device) for side in sides), Tolerance(1e-2, 1e-2, 0.5)) for device in ("cpu", "cuda")]
    assert repr(found[0].to_record()) == repr(found[1].to_record())
    assert found[0].problem() == found[1].problem()


@pytest.mark.gpu
def test_comparing_a_gigabyte_takes_less_than_300_megabytes():
    expected = torch.randn(1 << 29, device="cuda", dtype=torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert compare(expected, expected.clone().mul_(1.004), Tolerance(1e-2, 1e-2, 0.95)).problem() is None
    assert torch.cuda.max_memory_allocated() - before - (1 << 30) < 300e6


def test_float32_values_in_an_output_of_two_bytes_are_named_and_are_no_overflow():
    expected = RIGHT.bfloat16()
    got = RIGHT.flatten()[: RIGHT.numel() // 2].view(torch.bfloat16).view(RIGHT.shape).clone()
    got.flatten()[0] = NAN
    problem = describe_problem(compare(expected, got, USUAL), expected, got)
    assert ("(got has the bytes of float32 values); worst at [0, 0]" in problem, "overflow" in problem) == (True, False)
    small = (torch.randn(64, 64, generator=torch.Generator().manual_seed(1)) * 0.003).half()
    assert describe_pattern(small, small * 100, USUAL) == "got is expected times 100"
    same = torch.full((8, 64), 1 / 64).bfloat16()
    changed = same.index_fill(1, torch.arange(0, 64, 2), 1.0)
    assert describe_pattern(same, changed, USUAL) == "only every 2nd column, from 0"


# Patterns of wrong outputs.

RIGHT = torch.randn(12, 64, generator=torch.Generator().manual_seed(1)) + 3
SQUARE = torch.rand(32, 32, generator=torch.Generator().manual_seed(1)) + 1
RANGE = torch.arange(24).reshape(2, 3, 4)
LARGE = torch.arange(64).view(8, 8) + 2**60  # float64 does not hold all of these


def spoil(*where):
    wrong = RIGHT.clone()
    wrong[where] += 1.5
    return wrong


@pytest.mark.parametrize(
    ("right", "wrong", "reported"),
    [
        (RIGHT, RIGHT, None),
        (RIGHT, spoil(0, 3), "only the first row and column 3"),
        (RIGHT, spoil(slice(None), slice(15, None, 16)), "only every 16th column, from 15"),
        (RIGHT, RIGHT * 2, "got is expected times 2"),
        (RIGHT, RIGHT * 0, "all values are 0"),
        (RIGHT, RIGHT.t().reshape(12, 64), "got is expected, transposed"),
        (RIGHT, RIGHT.roll(-4, 0), "got is expected, shifted back by 4 rows"),
        (RIGHT, spoil(slice(None), [at for at in range(64) if at % 16 >= 12]), "only the last 4 of every 16 columns"),
        (RIGHT, RIGHT.flip(0), "got has the expected values in another order"),
        (SQUARE, SQUARE + torch.eye(32), "only on the diagonal"),
        (RANGE, RANGE.index_fill(0, torch.tensor(1), 99), "only the last index of axis 0"),
        (torch.zeros(0), torch.zeros(0), None),
        (LARGE, LARGE.index_add(0, torch.tensor([3]), torch.ones(1, 8, dtype=torch.int64)), "only row 3"),
        (LARGE, LARGE + 1, None),
    ],
)
def test_patterns(right, wrong, reported):
    assert describe_pattern(right, wrong, Tolerance(1e-4, 1e-4)) == reported


# Triton's helpers are shared only if no other user can write to their folder, and lent without any kernel.


def test_the_shared_folder_is_ours_alone_and_helpers_are_lent_but_no_kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_cache, "_shared", None)
    (tmp_path / "new").mkdir()
    lent = tmp_path / "new" / "triton"
    assert kernel_cache.lend_helpers(lent) == []
    kernel_cache.share_kernels(tmp_path)
    folder = kernel_cache.shared_folder(tmp_path)
    for part in (folder, folder.parent):
        assert part.stat().st_mode & 0o777 == 0o700
        part.chmod(0o777)
        assert kernel_cache.shared_folder(tmp_path) is None
        part.chmod(0o700)
    for key, name in (("K1", "cuda_utils.cpython-312-x86_64-linux-gnu.so"), ("K2", "compare.cubin")):
        (folder / key).mkdir()
        (folder / key / name).write_bytes(key.encode())
    helper = lent / "K1" / "cuda_utils.cpython-312-x86_64-linux-gnu.so"
    assert kernel_cache.lend_helpers(lent) == [lent, helper.parent, helper]
    assert (helper.read_bytes(), sorted(lent.rglob("*"))) == (b"K1", [helper.parent, helper])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "judge").symlink_to(folder.parent)
    assert kernel_cache.shared_folder(tmp_path / "other") is None
