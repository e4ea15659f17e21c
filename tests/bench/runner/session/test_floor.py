"""The time below which no right call lies on a GPU."""

from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.runner.session.floor import find_floor_ms, plan_floor
from flashinfer_bench.timing.settings import TimingSettings
from tests.kit import make_definition, make_workload

pytestmark = pytest.mark.cpu
H100 = {"name": "NVIDIA H100 80GB HBM3", "L2_cache_size": 50 << 20}
ROWS = 1 << 20
DOUBLE = "def run(x):\n    return x * 2\n"
ONE_ROW = "def run(x):\n    return x[:1] * 2\n"


def floor_ms(claimed_ms=0.0, *, reference=DOUBLE, rows=ROWS, **device):
    definition = make_definition(axes={"n": None, "d": 1024}, inputs={"x": "bfloat16[n, d]"}, reference=reference)
    workload = make_workload("w", axes={"n": rows}, inputs={"x": {"type": "random"}})
    return find_floor_ms(definition, workload, SimpleNamespace(**H100 | device), claimed_ms)


def test_the_floor_is_what_memory_needs_for_what_does_not_fit_into_the_cache():
    assert floor_ms() == pytest.approx((ROWS * 2048 - (50 << 20)) / 3.35e12 / 1.05 * 1e3)


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ({"name": "Somebody's GPU"}, 0.0),
        ({"rows": 100}, 0.0),
        ({"reference": ONE_ROW}, 0.0),
        ({"claimed_ms": 0.7}, 0.0),
    ],
    ids=["unknown device", "in the cache", "read in part", "claimed no less than reading everything takes"],
)
def test_where_nothing_is_proven_there_is_no_floor(case, told):
    assert floor_ms(**case) == told


def test_what_the_driver_tells_of_memory_and_cache_lowers_the_floor_and_never_raises_it():
    usual = floor_ms()
    assert floor_ms(memory_clock_rate=2_619_000, memory_bus_width=6_144) < usual
    assert floor_ms(memory_clock_rate=1_000_000, memory_bus_width=5_120) == usual
    assert floor_ms(L2_cache_size=60 << 20) < usual
    assert floor_ms(L2_cache_size=1 << 20) == usual


@pytest.mark.parametrize(("device", "l2_cache"), [("cpu", "cold"), ("cuda", "warm")])
def test_a_cpu_and_a_warm_cache_have_no_floor(device, l2_cache):
    plan = plan_floor(make_definition(), make_workload("w"), torch.device(device), TimingSettings(l2_cache=l2_cache))
    assert plan(0.0) == 0.0
