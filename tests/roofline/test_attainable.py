"""The roofline: which limit binds, what share was reached, and what cannot be."""

from __future__ import annotations

import math
import sys

import pytest

from flashinfer_bench.roofline.cost import Cost, size_of
from flashinfer_bench.roofline.peaks import PEAKS, Peak, describe_time, find_peak

H200 = "NVIDIA H200"
"""4.8 TB/s, 989 TFLOP/s in fp16, an L2 of 50 MiB."""


@pytest.mark.parametrize(
    ("flops", "bound", "floor_ms"), [(1e9, "memory", 1.0), (9.89e12, "compute", 10.0)], ids=["little", "much"]
)
def test_bytes_bind_what_calculates_little_and_arithmetic_what_calculates_much(flops, bound, floor_ms):
    found = describe_time(Cost(flops, 4.8e9, "fp16"), H200, 20.0)
    assert (found["bound"], found["floor_ms"], found["share"]) == (bound, pytest.approx(floor_ms), floor_ms / 20)


def test_a_unit_that_is_missing_runs_on_the_next_wider_one():
    assert find_peak("NVIDIA A100-SXM4-80GB").operations("fp4") == 312
    assert Peak("test", {"fp32": 10.0}, 2.0).operations("tf32") == 10.0


def test_data_that_fit_into_the_cache_may_be_faster_than_memory():
    assert "too_fast" not in describe_time(Cost(0, 1000), H200, 1e-9)


@pytest.mark.parametrize(("moved", "bound"), [(1000, "compute"), (4e9, "memory")])
def test_what_is_too_fast_is_told_by_the_limit_that_it_breaks(moved, bound):
    found = describe_time(Cost(1e4, moved, "fp16"), H200, 1e-12)
    assert found["bound"] == "memory"
    assert "faster than the device allows" in found["too_fast"]
    assert f"bound by {bound}" in found["too_fast"]


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
    for _, name, tflops, *others in PEAKS:
        assert min(others) > 0, name
        assert max(tflops) > 0 <= min(tflops), name


def test_the_facts_of_a_time_are_rates_and_a_share():
    facts = describe_time(Cost(0, 4.8e9), H200, 2.0)
    assert (facts["flops"], facts["bytes"], facts["unit"]) == (0, 4.8e9, "fp32")
    assert (facts["tb_per_sec"], facts["share"], facts["bound"]) == (2.4, 0.5, "memory")
    assert facts["peak"] == "H200 SXM (vendor)"
    assert "too_fast" in describe_time(Cost(0, 4.8e9), H200, 0.5)
    assert "share" not in describe_time(Cost(0, 4.8e9), "unheard of", 2.0)
    assert describe_time(Cost(0, 1), H200, 0.0) is None


def test_the_largest_cost_that_can_be_stated_makes_finite_facts():
    largest = sys.float_info.max
    facts = describe_time(Cost(largest, largest), H200, 1e-6)
    assert all(math.isfinite(value) for value in facts.values() if isinstance(value, float))


def test_packed_elements_take_half_a_byte():
    assert (size_of("float4_e2m1"), size_of("float32")) == (0.5, 4)
