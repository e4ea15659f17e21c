"""The comparison: what fails, what is counted, what is reported; and that how it is cut into chunks does not matter."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.bench.evaluators.compare import chunks as compare_chunks
from flashinfer_bench.bench.evaluators.compare.chunks import measure_chunks
from flashinfer_bench.bench.evaluators.compare.outputs import compare, describe_nonfinite
from flashinfer_bench.bench.evaluators.compare.pattern import describe_pattern
from flashinfer_bench.bench.evaluators.compare.rule import WINDOW, Findings, Tolerance
from flashinfer_bench.bench.evaluators.verdict import compare_outputs, describe_problems
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu

EXACT = Tolerance(0.0, 0.0)
USUAL = Tolerance(rtol=1e-2, atol=1e-2)
MOSTLY = Tolerance(rtol=1e-2, atol=1e-2, required_matched_ratio=0.9)
NAN, INF = math.nan, math.inf


def vector(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("expected", "got", "passes"),
    [
        pytest.param(1.0, 1.009, True, id="within both"),
        pytest.param(100.0, 100.5, True, id="beyond atol, within rtol"),
        pytest.param(0.001, 0.005, True, id="beyond rtol, within atol"),
        pytest.param(1.0, 1.03, False, id="beyond both"),
        pytest.param(0.0, 0.009, True, id="zero expected, within atol"),
        pytest.param(0.0, 0.02, False, id="zero expected, beyond atol"),
        pytest.param(1.0, NAN, False, id="nan"),
        pytest.param(1.0, INF, False, id="inf"),
        pytest.param(NAN, NAN, True, id="nan expected"),
        pytest.param(-INF, -INF, True, id="inf expected"),
        pytest.param(-INF, INF, False, id="wrong sign of inf"),
        pytest.param(INF, 3e38, False, id="large where inf is expected"),
        pytest.param(INF, NAN, False, id="nan where inf is expected"),
        pytest.param(NAN, 1.0, False, id="number where nan is expected"),
        pytest.param(3e38, -3e38, False, id="difference overflows"),
    ],
)
def test_an_element_fails_beyond_both_tolerances(expected, got, passes):
    found = compare(vector(0.5, expected), vector(0.5, got), USUAL)
    assert (found.problem() is None) == passes
    assert found.mismatched == (0 if passes else 1)


@pytest.mark.parametrize("expected", [1.0, -1.0, 0.001, 100.0, 0.0])
@pytest.mark.parametrize("share", [0.95, 1.05])
def test_where_the_tolerance_is_a_sum_both_count_together(expected, share):
    limits = Tolerance(rtol=1e-2, atol=1e-2, is_sum=True)
    got = expected + share * (limits.atol + limits.rtol * abs(expected))
    found = compare(vector(0.5, expected), vector(0.5, got), limits)
    assert (found.problem() is None) == (share < 1) == torch.allclose(vector(got), vector(expected), 1e-2, 1e-2)
    assert found.problem() is None or "rtol=0.01, added" in found.problem()


def test_an_infinite_bound_lets_nothing_infinite_pass():
    assert compare(vector(3e38), vector(INF), Tolerance(rtol=10.0, atol=0.0)).problem() is not None


def test_a_nan_is_wrong_whatever_the_ratio():
    expected = torch.ones(10_000)
    got = expected.clone()
    got[17] = NAN
    found = compare(expected, got, Tolerance(0.1, 0.1, required_matched_ratio=0.5))
    assert found.nonfinite_mismatched == 1
    assert found.max_abs_error == INF
    assert "nan or infinite" in (found.problem() or "")


def test_an_output_of_nothing_but_nan_is_said_to_look_unwritten():
    expected = torch.ones(4)
    assert "all 4 elements are nan" in (compare(expected, vector(*[NAN] * 4), USUAL).problem() or "")
    assert "never written" not in (compare(expected, vector(*[INF] * 4), USUAL).problem() or "")
    assert "never written" not in (compare(expected, vector(1.0, *[NAN] * 3), USUAL).problem() or "")


def test_the_report_names_the_worst_element_and_the_numbers():
    expected = torch.ones(4, 5)
    got = expected.clone()
    got[2, 3], got[0, 1] = 9.0, 1.5
    found = compare(expected, got, USUAL, output="out")
    assert found.worst is not None
    assert found.worst.index == (2, 3)
    message = found.problem() or ""
    for part in ("'out'", "2 of 20", "[2, 3]", "expected 1", "got 9", "matched ratio 0.9", "atol=0.01", "rtol=0.01"):
        assert part in message


def test_the_worst_element_is_the_one_furthest_beyond_what_it_is_allowed():
    found = compare(vector(1000.0, 0.0), vector(1020.0, 0.5), USUAL)
    assert found.worst is not None
    assert found.worst.index == (1,)
    assert found.max_abs_error == pytest.approx(20.0)


def test_relative_errors_leave_expected_zeros_out():
    found = compare(vector(0.0, 2.0), vector(0.005, 2.01), USUAL)
    assert found.max_rel_error == pytest.approx(0.005, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.uint16, torch.uint32])
def test_integers_have_no_tolerance(dtype):
    expected, got = vector(100, 7, dtype=dtype), vector(101, 7, dtype=dtype)
    found = compare(expected, got, Tolerance(rtol=1.0, atol=100.0))
    assert (found.mismatched, found.max_abs_error) == (1, 1.0)
    assert (found.problem() or "").endswith("integers and booleans have no tolerance")
    assert compare(expected, expected, EXACT).problem() is None


@pytest.mark.parametrize("asks", [True, False], ids=["as on a CPU", "as on a GPU"])
def test_large_integers_that_are_equal_as_floats_differ(monkeypatch, asks):
    if not asks:
        monkeypatch.setattr(compare_chunks, "_surely", lambda condition: False)
    found = compare(vector(2**60, dtype=torch.int64), vector(2**60 + 1, dtype=torch.int64), EXACT)
    assert found.mismatched == 1


def test_a_bool_byte_that_was_never_written_is_wrong():
    expected = vector(1, 1, 0, dtype=torch.bool)
    raw = torch.tensor([1, 0xA5, 0], dtype=torch.uint8)
    for got in (raw, raw.view(torch.bool)):
        found = compare(expected, got, USUAL)
        assert found.mismatched == 1
        assert found.worst is not None
        assert (found.worst.index, found.worst.got) == ((1,), 0xA5)


def test_fp8_is_compared_by_value():
    expected = vector(1.0, 448.0, dtype=torch.float8_e4m3fn)
    assert compare(expected, vector(1.0, 416.0, dtype=torch.float8_e4m3fn), USUAL).mismatched == 1
    poison = torch.full((2,), 0xFF, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert compare(expected, poison, USUAL).nonfinite_mismatched == 2


def test_packed_fp4_is_compared_element_by_element():
    expected = torch.tensor([[0x21, 0x43]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    got = torch.tensor([[0x21, 0x73]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    found = compare(expected, got, USUAL)
    assert (found.elements, found.mismatched) == (4, 1)
    assert found.worst is not None
    assert (found.worst.index, found.worst.expected, found.worst.got) == ((0, 3), 2.0, 6.0)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_single_numbers_and_empty_outputs_are_compared(shape):
    found = compare(torch.zeros(shape), torch.zeros(shape), EXACT)
    assert (found.problem(), found.matched_ratio) == (None, 1.0)


def test_a_matched_ratio_excuses_so_many_elements_and_no_more():
    expected = torch.linspace(1, 2, 1000)
    for wrong, passes in ((100, True), (101, False)):
        got = expected.clone()
        got[torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:wrong]] += 0.5
        assert (compare(expected, got, MOSTLY).problem() is None) == passes


def test_an_absurd_error_is_not_excused():
    expected = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    got = expected.clone()
    got[5] = 1e4
    assert "max_error_cap" in (compare(expected, got, MOSTLY).problem() or "")
    assert compare(expected, got, Tolerance(1e-2, 1e-2, 0.9, max_error_cap=1e6)).problem() is None


@pytest.mark.parametrize("fill", [0.0, 0.25])
def test_an_unwritten_stretch_is_not_excused(fill):
    expected = torch.randn(100, 64, generator=torch.Generator().manual_seed(0))
    got = expected.clone()
    got[3] = fill
    found = compare(expected, got, MOSTLY)
    assert found.unwritten_at == (3, 0)
    assert "unwritten" in (found.problem() or "")


def test_equal_neighbours_that_are_right_are_not_taken_for_unwritten():
    expected = torch.randn(100, 64, generator=torch.Generator().manual_seed(0))
    expected[3] = 0.0
    got = expected.clone()
    got[50, :8] += 1.0
    assert compare(expected, got, MOSTLY).problem() is None


def test_half_precision_is_compared_in_single():
    expected = torch.full((4,), 60_000.0, dtype=torch.float16)
    found = compare(expected, -expected, USUAL)
    assert found.max_abs_error == 120_000.0


def test_doubles_are_compared_in_double():
    found = compare(vector(1.0, dtype=torch.float64), vector(1.0 + 1e-12, dtype=torch.float64), Tolerance(0.0, 1e-13))
    assert found.mismatched == 1


def test_outputs_that_are_not_contiguous_are_compared_in_their_own_order():
    expected = torch.arange(12.0).reshape(3, 4).T
    got = expected.clone()
    got[1, 2] += 5
    found = compare(expected, got, USUAL)
    assert found.worst is not None
    assert found.worst.index == (1, 2)


values = st.sampled_from([0.0, -0.0, 1.0, 1.005, 1.5, -2.0, 100.0, 3e38, NAN, INF, -INF])
pairs = st.lists(st.tuples(values, values), min_size=1, max_size=200)
tolerances = st.sampled_from([EXACT, USUAL, MOSTLY, Tolerance(0.5, 0.0, 0.5)])


@given(pairs, tolerances, st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_the_chunk_size_does_not_change_the_result(elements, tolerance, chunks):
    expected, got = (torch.tensor(side) for side in zip(*elements, strict=True))
    whole = compare(expected, got, tolerance, chunk_elements=1 << 20)
    assert repr(compare(expected, got, tolerance, chunk_elements=chunks * WINDOW)) == repr(whole)


@given(pairs, tolerances)
@settings(max_examples=100, deadline=None)
def test_not_asking_the_device_in_between_does_not_change_the_result(elements, tolerance):
    expected, got = (torch.tensor(side) for side in zip(*elements, strict=True))
    asked = measure_chunks(expected, got, tolerance)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare_chunks, "_surely", lambda condition: False)
        assert repr(measure_chunks(expected, got, tolerance)) == repr(asked)


@given(pairs, tolerances, st.integers(0, 6))
@settings(max_examples=100, deadline=None)
def test_stretches_put_together_are_the_whole(elements, tolerance, cut):
    expected, got = (torch.tensor(side) for side in zip(*elements, strict=True))
    cut = min(cut * WINDOW, len(elements) - 1)
    ends = [measure_chunks(expected[cut:], got[cut:], tolerance).moved(cut)]
    starts = [measure_chunks(expected[:cut], got[:cut], tolerance)] if cut else []
    assert repr(Findings.combine(starts + ends)) == repr(measure_chunks(expected, got, tolerance))


@given(st.permutations(range(3)), st.lists(pairs, min_size=3, max_size=3), tolerances)
@settings(max_examples=60, deadline=None)
def test_the_order_of_the_outputs_does_not_change_what_is_found_of_each(order, outputs, tolerance):
    def judge(places):
        names = {f"y{place}": "float32[n]" for place in places}
        sides = [zip(*outputs[place], strict=True) for place in places]
        expected, got = zip(*([torch.tensor(side) for side in pair] for pair in sides), strict=True)
        return compare_outputs(make_definition(outputs=names), got, expected, tolerance)

    plain, moved = judge(range(3)), judge(order)
    assert [repr(plain[place]) for place in order] == [repr(found) for found in moved]
    assert (describe_problems(plain) is None) == (describe_problems(moved) is None)


@given(pairs, tolerances)
@settings(max_examples=150, deadline=None)
def test_the_rule_is_the_one_that_is_written_down(elements, tolerance):
    expected, got = (torch.tensor(side) for side in zip(*elements, strict=True))

    def matches(left: float, right: float) -> bool:
        if not math.isfinite(left):
            return left == right or (math.isnan(left) and math.isnan(right))
        error = abs(right - left)
        return error <= tolerance.atol or error <= tolerance.rtol * abs(left)

    pairs_of_singles = zip(expected.tolist(), got.tolist(), strict=True)
    assert compare(expected, got, tolerance).mismatched == sum(not matches(*pair) for pair in pairs_of_singles)


@given(pairs, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_order_of_the_batch_does_not_change_the_counts(elements, random):
    shuffled = list(elements)
    random.shuffle(shuffled)
    found = [
        compare(*(torch.tensor(side) for side in zip(*order, strict=True)), USUAL) for order in (elements, shuffled)
    ]
    for name in ("mismatched", "nonfinite_mismatched", "max_abs_error", "max_rel_error", "max_expected"):
        assert getattr(found[0], name) == getattr(found[1], name)


@given(st.integers(0, 299), st.sampled_from([NAN, INF, -INF]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_value_that_is_not_finite_is_found_wherever_it_is(place, value, in_reference):
    sides = [torch.ones(300), torch.ones(300)]
    sides[0 if in_reference else 1][place] = value
    found = compare(*sides, MOSTLY, chunk_elements=WINDOW)
    assert (found.nonfinite_mismatched, found.mismatched) == (1, 1)
    assert found.worst is not None
    assert found.worst.index == (place,)


@pytest.mark.parametrize(
    ("dtype", "shared"),
    [
        (torch.float32, 0.0),
        (torch.float8_e4m3fn, 0.0),
        (torch.uint8, 0),
        (torch.float32, NAN),
        (torch.float8_e4m3fn, NAN),
    ],
)
def test_shared_zeros_do_not_count_for_the_ratio_where_they_are_ignored(dtype, shared):
    expected = torch.full((1000,), shared).to(dtype)
    expected[:20] = torch.ones(20).to(dtype)
    got = expected.clone()
    got[:2] = torch.full((2,), 2.0).to(dtype)
    usual = Tolerance(0.1, 0.1, required_matched_ratio=0.95)
    assert compare(expected, got, usual).problem() is None
    found = compare(expected, got, replace(usual, ignores_shared_zeros=True))
    assert (found.shared_zeros, found.counted_ratio, found.matched_ratio) == (980, 0.9, 0.998)
    assert "2 of the 20 elements that are not zero on both sides differ" in (found.problem() or "")
    assert (
        compare(expected, got, replace(usual, ignores_shared_zeros=True, required_matched_ratio=0.9)).problem() is None
    )


def test_a_scale_that_is_a_power_of_two_counts_as_zero_as_a_byte_of_0():
    expected = torch.zeros(100, dtype=torch.uint8)
    expected[:10] = 127
    got = expected.clone()
    got[:5] = 128
    types = [value.view(torch.float8_e8m0fnu) for value in (expected, got)]
    assert compare(types[0], types[1], Tolerance(0.1, 0.1, 0.9, ignores_shared_zeros=True)).shared_zeros == 90


@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_a_cap_on_the_largest_error_holds_whatever_else_is_allowed(ratio):
    expected, got = vector(100.0, 1.0), vector(100.5, 1.0)
    capped = Tolerance(1e-2, 1e-2, ratio, max_absolute_error=0.4)
    assert "the largest error, 0.5, is over 0.4" in (compare(expected, got, capped).problem() or "")
    assert compare(expected, got, Tolerance(1e-2, 1e-2, ratio, max_absolute_error=0.6)).problem() is None


@pytest.mark.parametrize("chunk_elements", [None, 64])
@pytest.mark.parametrize(
    ("dtype", "expected", "got"),
    [
        ("int64", 2**62 + 1, 2**62 + 2),
        ("int64", -(2**63), 2**63 - 1),
        ("uint64", 2**64 - 6, 2**64 - 5),
        ("uint64", 2**64 - 1, 0),
        ("int32", 2**31 - 1, -(2**31)),
        ("uint8", 3, 250),
    ],
)
def test_whole_numbers_and_how_far_apart_they_are_are_told_exactly(dtype, expected, got, chunk_elements):
    wanted, other = (torch.tensor([one] * 96, dtype=getattr(torch, dtype)) for one in (expected, got))
    found = compare(wanted, other, USUAL, chunk_elements=chunk_elements)
    assert f"expected {expected}, got {got} " in (found.problem() or "")
    assert found.max_abs_error == pytest.approx(abs(got - expected), rel=1e-15)
    assert found.mismatched == 96


def test_where_whole_numbers_differ_that_float64_does_not_hold_is_told_and_no_factor():
    wanted = torch.arange(64).view(8, 8) + 2**60
    other = wanted.clone()
    other[3] += 1
    assert describe_pattern(wanted, other, USUAL) == "only row 3"
    assert describe_pattern(wanted, wanted + 1, USUAL) is None


@pytest.mark.parametrize("value", [NAN, INF])
def test_the_usual_cause_of_what_is_not_finite_is_told(value):
    assert "overflow" in (compare(vector(1.0, 2.0), vector(1.0, value), USUAL).problem() or "")
    assert "overflow" not in (compare(vector(1.0, value), vector(1.0, 2.0), USUAL).problem() or "")
    told = describe_nonfinite(vector(1.0, 2.0), vector(1.0, value)) or ""
    assert f"[1], is {value:g}: an overflow" in told
    assert describe_nonfinite(vector(1.0, value), vector(2.0, value)) is None
