"""How a job is measured, the floor of its latency, and the evaluation that is made of its outcome."""

import enum
import json
import pathlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flashinfer_bench.base.plain_values import to_number
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluators.evaluator import Rejected
from flashinfer_bench.bench.runner.session.job import find_floor_ms, plan_floor, plan_reference
from flashinfer_bench.bench.runner.session.outcome import (
    OUTPUT_TITLE,
    NotPlain,
    Passed,
    make_evaluation,
    to_json_value,
)
from flashinfer_bench.data import Correctness, Environment, EvaluationStatus, Performance
from flashinfer_bench.timing.settings import TimingSettings
from tests.kit import make_definition, make_workload

pytestmark = pytest.mark.cpu
H100 = {"name": "NVIDIA H100 80GB HBM3", "L2_cache_size": 50 << 20}
ROWS = 1 << 20


def test_a_reference_is_measured_alike_at_each_assurance_so_a_kept_time_holds_for_both():
    config = BenchmarkConfig().resolve_eval_config(make_definition())
    usual, full = (
        plan_reference(SimpleNamespace(device="cuda", baseline_budget_s=2.0, timing=timing), config)
        for timing in (TimingSettings("warm", assurance="standard"), TimingSettings("warm", assurance="full"))
    )
    assert usual == full
    assert usual.timing.l2_cache == "warm"


def floor_ms(claimed_ms=0.0, *, body="x * 2", rows=ROWS, **device):
    reference = f"def run(x):\n    return {body}\n"
    definition = make_definition(axes={"n": None, "d": 1024}, inputs={"x": "bfloat16[n, d]"}, reference=reference)
    workload = make_workload("w", axes={"n": rows}, inputs={"x": {"type": "random"}})
    return find_floor_ms(definition, workload, SimpleNamespace(**H100 | device), claimed_ms)


@pytest.mark.parametrize(
    "case",
    [{"name": "Somebody's GPU"}, {"rows": 100}, {"body": "x[:1] * 2"}, {"claimed_ms": 0.7}],
    ids=["unknown device", "in the cache", "read in part", "claimed no less than reading everything takes"],
)
def test_without_a_proof_there_is_no_floor(case):
    assert floor_ms(**case) == 0.0


def test_the_floor_is_the_time_to_read_what_does_not_fit_into_the_cache_and_the_driver_lowers_it_only():
    usual = floor_ms()
    assert usual == pytest.approx((ROWS * 2048 - (50 << 20)) / 3.35e12 / 1.05 * 1e3)
    assert floor_ms(memory_clock_rate=2_619_000, memory_bus_width=6_144) < usual
    assert floor_ms(memory_clock_rate=1_000_000, memory_bus_width=5_120) == usual
    assert floor_ms(L2_cache_size=60 << 20) < usual == floor_ms(L2_cache_size=1 << 20)
    for device, l2_cache in (("cpu", "cold"), ("cuda", "warm")):
        timing = TimingSettings(l2_cache=l2_cache)
        assert plan_floor(make_definition(), make_workload("w"), torch.device(device), timing)(0.0) == 0.0


PASSED = Passed(
    Correctness(max_relative_error=0.0, max_absolute_error=0.0),
    Performance(latency_ms=1.0, reference_latency_ms=2.0, speedup_factor=2.0),
)


@pytest.mark.parametrize(
    ("outcome", "printed", "lines"),
    [
        (PASSED, "hello", ["hello"]),
        (Rejected(EvaluationStatus.INCORRECT_NUMERICAL, "y[0] is wrong"), "", ["y[0] is wrong"]),
        (Rejected(EvaluationStatus.INCORRECT_SHAPE, "y is flat"), "hello", ["y is flat", OUTPUT_TITLE, "hello"]),
    ],
)
def test_a_log_says_first_why_it_is_so_and_then_what_was_printed(outcome, printed, lines):
    environment = Environment(hardware="test device", libs={})
    made = make_evaluation(
        outcome, printed=printed, timestamp="2025-01-02T03:04:05Z", environment=environment, extra={}
    )
    assert made.log.splitlines() == lines


class Kind(enum.Enum):
    FIRST = "first"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float32(1.5), 1.5),
        (np.arange(3), [0, 1, 2]),
        ({1: (np.int8(2), {3})}, {"1": [2, [3]]}),
        (pathlib.Path("/x"), "/x"),
        (Kind.FIRST, "first"),
        ("\ud800", "\\ud800"),
        (10**30, hex(10**30)),
        ([torch.tensor(2.5), torch.ones(2, dtype=torch.bfloat16, requires_grad=True)], [2.5, [1.0, 1.0]]),
        (torch.float32, "torch.float32"),
    ],
)
def test_a_value_gets_the_form_that_json_has(value, plain):
    found = to_json_value(value)
    assert (found, type(found)) == (plain, type(plain))
    json.dumps(found, allow_nan=False)
    assert [to_number(one) for one in (torch.tensor(3), np.int64(3), 3)] == [3, 3, 3]


ENDLESS = {}
ENDLESS["again"] = ENDLESS


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "^a has a value that JSON cannot hold: TypeError: a builtins.object"),
        (np.zeros(10**6), r"shape \(1000000,\)"),
        ([0] * 10**6, "100,000 values"),
        (ENDLESS, "Circular"),
        (torch.empty(3, device="meta"), "meta"),
    ],
)
def test_a_value_without_a_json_form_is_reported_with_its_location(value, words):
    with pytest.raises(NotPlain, match=words):
        to_json_value({"b": value}, "a")
