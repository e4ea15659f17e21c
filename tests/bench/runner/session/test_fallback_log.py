"""A trace's log says when a clock was not the one that was wanted."""

import pytest

from flashinfer_bench.bench.evaluators.evaluator import Rejected
from flashinfer_bench.bench.runner.session.outcome import OUTPUT_TITLE, Passed, make_evaluation
from flashinfer_bench.data import Correctness, Environment, EvaluationStatus, Performance
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR

pytestmark = pytest.mark.cpu

PASSED = Passed(
    Correctness(max_relative_error=0.0, max_absolute_error=0.0),
    Performance(latency_ms=1.0, reference_latency_ms=2.0, speedup_factor=2.0),
)
LOST = {"method": "cuda_events", "fallback": "CUPTI lost records: 3 dropped"}


def log_of(outcome=PASSED, printed="", **extra):
    environment = Environment(hardware="test device", libs={})
    return make_evaluation(
        outcome, printed=printed, timestamp="2025-01-02T03:04:05Z", environment=environment, extra=extra
    ).log


def test_a_fall_back_stands_first_in_the_log():
    log = log_of(measurement=LOST, baseline=LOST, printed="hello")
    assert log.splitlines() == [
        "the solution was timed by CUDA events: CUPTI lost records: 3 dropped",
        "the reference was timed by CUDA events: CUPTI lost records: 3 dropped",
        OUTPUT_TITLE,
        "hello",
    ]


@pytest.mark.parametrize(
    "record",
    [{"method": "cupti"}, {"method": "wall"}, {"method": "cuda_events", "fallback": EVENTS_ASKED_FOR}, None],
    ids=["cupti", "wall", "asked for", "not timed"],
)
def test_what_was_wanted_is_not_mentioned(record):
    assert log_of(measurement=record) == ""


def test_a_rejected_solution_keeps_its_reason_first():
    rejected = Rejected(EvaluationStatus.INCORRECT_NUMERICAL, "y[0] is wrong")
    assert log_of(rejected, measurement=LOST) == "y[0] is wrong"
