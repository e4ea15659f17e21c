"""The roofline: which limit binds, what share was reached, and what cannot be."""

from __future__ import annotations

import math
import sys

import pytest

from flashinfer_bench.roofline.attainable import find_attainable
from flashinfer_bench.roofline.cost import Cost, bytes_of
from flashinfer_bench.roofline.peaks import PEAKS, Peak, find_peak
from flashinfer_bench.roofline.workloads import describe_time

PEAK = Peak("test", {"fp16": 100.0, "fp32": 10.0}, 2.0, l2_bytes=1000)


def test_bytes_bind_what_calculates_little():
    found = find_attainable(Cost(1e9, 4e9, "fp16"), PEAK)
    assert (found.bound, found.floor_ms, found.share(4.0)) == ("memory", 2.0, 0.5)


def test_arithmetic_binds_what_calculates_much():
    found = find_attainable(Cost(1e12, 4e9, "fp16"), PEAK)
    assert (found.bound, found.floor_ms) == ("compute", 10.0)


def test_a_unit_that_is_missing_runs_on_the_next_wider_one():
    assert PEAK.operations("fp8") == 100.0
    assert PEAK.operations("tf32") == 10.0


def test_what_is_faster_than_the_floor_is_told():
    found = find_attainable(Cost(0, 4e9), PEAK)
    assert found.too_fast(1.95) is None
    assert "faster than the device allows" in found.too_fast(1.0)


def test_data_that_fit_into_the_cache_may_be_faster_than_memory():
    assert find_attainable(Cost(0, 1000), PEAK).too_fast(1e-9) is None


@pytest.mark.parametrize(("moved", "bound"), [(1000, "compute"), (4e9, "memory")])
def test_what_is_too_fast_is_told_by_the_limit_that_it_breaks(moved, bound):
    found = find_attainable(Cost(1e4, moved, "fp16"), PEAK)
    assert found.bound == "memory"
    assert f"bound by {bound}" in found.too_fast(1e-12)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA H20", "H20"),
        ("AMD EPYC", None),
    ],
)
def test_devices_are_found_by_their_names(name, expected):
    peak = find_peak(name)
    assert (peak.name if peak else None) == expected


def test_every_figure_is_a_number_above_zero():
    assert all(value > 0 for _, peak in PEAKS for value in (*peak.tflops.values(), peak.tb_per_sec, peak.l2_bytes))


def test_the_facts_of_a_time_are_rates_and_a_share():
    facts = describe_time(Cost(0, 4.8e9), "NVIDIA H200", 2.0)
    assert (facts["flops"], facts["bytes"], facts["unit"]) == (0, 4.8e9, "fp32")
    assert (facts["tb_per_sec"], facts["share"], facts["bound"]) == (2.4, 0.5, "memory")
    assert facts["peak"] == "H200 SXM (vendor)"
    assert "too_fast" in describe_time(Cost(0, 4.8e9), "NVIDIA H200", 0.5)
    assert "share" not in describe_time(Cost(0, 4.8e9), "unheard of", 2.0)
    assert describe_time(Cost(0, 1), "NVIDIA H200", 0.0) is None


def test_the_largest_cost_that_can_be_stated_makes_finite_facts():
    largest = sys.float_info.max
    facts = describe_time(Cost(largest, largest), "NVIDIA H200", 1e-6)
    assert all(math.isfinite(value) for value in facts.values() if isinstance(value, float))


def test_packed_elements_take_half_a_byte():
    assert bytes_of([((2, 3), "float4_e2m1"), ((5,), "float32")]) == 3 + 20
