"""Which recorded jobs a resumed run leaves out, and why it does others again."""

import re
from pathlib import Path

import pytest

from flashinfer_bench.bench.planning import resume
from flashinfer_bench.bench.planning.resume import PROTOCOL, Decision, JobLimits, RecordedJobs, fingerprint
from flashinfer_bench.bench.runner.workers.process import WorkerExit
from flashinfer_bench.data.evaluation import Correctness, Environment, Evaluation, EvaluationStatus, Performance
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import Workload

MARKS = {"definition": "d", "solution": "s", "workload": "w", "config": "c", "protocol": PROTOCOL, "sandbox": "walls"}
WANTED = fingerprint(**MARKS, hardware="NVIDIA H200")
KEY = ("gemm", "fast", "uuid-1")


def make_trace(
    found=WANTED, *, status="PASSED", reference_ms=2.0, extra=None, log="", when="2025-01-01", hardware="NVIDIA H200"
):
    passed = status == "PASSED"
    evaluation = Evaluation(
        status=EvaluationStatus(status),
        log=log,
        timestamp=f"{when}T00:00:00Z",
        environment=Environment(hardware=hardware),
        correctness=Correctness() if passed else None,
        performance=Performance(latency_ms=1.0, reference_latency_ms=reference_ms) if passed else None,
        extra=extra if extra is not None else {"run": {"fingerprint": found}},
    )
    workload = Workload(uuid="uuid-1", axes={}, inputs={})
    return Trace(definition="gemm", workload=workload, solution="fast", evaluation=evaluation)


def decide(*traces, wanted=WANTED, key=KEY, needs_baseline=True, retry_timeouts=False, limits=None):
    recorded = RecordedJobs.from_traces(traces, retry_timeouts=retry_timeouts)
    return recorded.decide(key, wanted, needs_baseline=needs_baseline, limits=limits)


def test_a_job_with_the_same_fingerprint_is_skipped():
    assert decide(make_trace()) == Decision("skip")
    assert decide(make_trace(status="RUNTIME_ERROR")) == Decision("skip")


@pytest.mark.parametrize("key", [("gemm", "fast", "uuid-2"), ("gemm", "other", "uuid-1"), ("other", "fast", "uuid-1")])
def test_a_job_of_another_name_is_new(key):
    assert decide(make_trace(), key=key) == Decision("new")


def test_workload_lines_record_nothing():
    line = Trace(definition="gemm", workload=Workload(uuid="uuid-1", axes={}, inputs={}))
    assert decide(line) == Decision("new")


@pytest.mark.parametrize("changed", list(WANTED))
def test_whatever_changed_is_named(changed):
    assert decide(make_trace({**WANTED, changed: "old"})) == Decision("redo", f"{changed} changed")


@pytest.mark.parametrize("mark", ["protocol", "sandbox"])
def test_a_record_from_before_a_mark_was_kept_is_judged_again(mark):
    old = {key: value for key, value in WANTED.items() if key != mark}
    assert decide(make_trace(old)) == Decision("redo", f"{mark} changed")


def test_a_full_verdict_holds_for_the_standard_assurance_and_no_standard_one_for_the_full():
    full = {**WANTED, "assurance": "full"}
    assert decide(make_trace(full)) == decide(make_trace(full), wanted=full) == Decision("skip")
    assert decide(make_trace(), wanted=full) == Decision("redo", "assurance changed")


def test_all_that_changed_is_named():
    old = {**WANTED, "solution": "old", "config": "old"}
    assert decide(make_trace(old)) == Decision("redo", "solution and config changed")


def test_any_equal_record_counts_and_the_last_one_says_what_changed():
    older, old = make_trace({**WANTED, "config": "x"}), make_trace({**WANTED, "solution": "x"})
    assert decide(older, old) == Decision("redo", "solution changed")
    assert decide(make_trace(), make_trace({**WANTED, "config": "x"})) == Decision("skip")


@pytest.mark.parametrize("changed", ["definition", "solution", "workload"])
def test_a_record_with_a_later_verdict_of_something_else_counts_no_more(changed):
    other = make_trace({**WANTED, changed: "x"})
    assert decide(make_trace(), other) == Decision("redo", f"{changed} changed")
    assert decide(make_trace(), other, make_trace()) == Decision("skip")
    assert decide(make_trace(), make_trace({**WANTED, changed: "x"}, hardware="B200")) == Decision("skip")


def test_a_record_of_a_run_on_unlike_devices_names_one_of_them():
    both = {**WANTED, "hardware": "B200 + NVIDIA H200"}
    assert decide(make_trace(both, hardware="B200"), wanted=both) == Decision("skip")


def test_the_time_says_which_verdict_is_later_not_the_place_in_the_file():
    other = {**WANTED, "solution": "x"}
    assert decide(make_trace(when="2026-01-01"), make_trace(other)) == Decision("skip")
    assert decide(make_trace(), make_trace(other, when="2024-12-31")) == Decision("skip")
    assert decide(make_trace(other, when="2026-01-01"), make_trace()).action == "redo"


@pytest.mark.parametrize("extra", [{}, {"run": None}, {"run": {"fingerprint": None}}, {"run": {"fingerprint": ["d"]}}])
def test_a_trace_without_a_fingerprint_proves_nothing(extra):
    assert decide(make_trace(extra=extra)) == Decision("redo", "recorded without a fingerprint")


def test_a_trace_from_before_evaluators_had_revisions_is_read_and_does_not_match():
    wanted = {**WANTED, "evaluator": "DefaultEvaluator 1"}
    assert decide(make_trace(), wanted=wanted) == Decision("redo", "evaluator changed")
    assert decide(make_trace(wanted), wanted=wanted) == Decision("skip")


def test_a_fingerprint_with_further_keys_is_not_the_same():
    assert decide(make_trace({**WANTED, "more": "x"})).action == "redo"


def test_a_seed_counts_where_it_is_asked_for():
    seeded = {**WANTED, "seed": "1"}
    assert decide(make_trace(seeded)) == Decision("skip")
    assert decide(make_trace(seeded), wanted=seeded) == Decision("skip")
    assert decide(make_trace(seeded), wanted={**WANTED, "seed": "2"}) == Decision("redo", "seed changed")
    assert decide(make_trace(), wanted=seeded) == Decision("redo", "seed changed")
    assert decide(make_trace({**seeded, "config": "x"})) == Decision("redo", "config changed")
    drawn = make_trace(extra={"run": {"fingerprint": WANTED, "seed": 1}})  # nobody gave it, and it is the same
    assert decide(drawn, wanted=seeded) == Decision("skip")
    assert decide(drawn, wanted={**WANTED, "seed": "2"}) == Decision("redo", "seed changed")


def test_timeouts_are_retried_only_when_asked():
    assert decide(make_trace(status="TIMEOUT")) == Decision("skip")
    assert decide(make_trace(status="TIMEOUT"), retry_timeouts=True) == Decision("redo", "timed out")


@pytest.mark.parametrize(("limit", "action"), [(10.0, "skip"), (5.0, "skip"), (11.0, "redo")])
def test_a_timeout_is_done_again_under_a_longer_limit(limit, action):
    run = {"fingerprint": WANTED, "timeout_seconds": 10}
    late = make_trace(status="TIMEOUT", extra={"run": run})
    assert decide(late, limits=JobLimits(timeout_seconds=limit)).action == action
    assert decide(make_trace(extra={"run": run}), limits=JobLimits(timeout_seconds=99.0)) == Decision("skip")


@pytest.mark.parametrize(
    ("then", "now", "action"), [(1.0, 2.0, "redo"), (2.0, 1.0, "skip"), (1, None, "redo"), (None, None, "skip")]
)
def test_a_worker_that_took_too_much_memory_is_tried_with_more(then, now, action):
    log = f"the worker is gone: {WorkerExit(None, 9, leftover=0, over_memory=True)}"
    run = {"fingerprint": WANTED, "worker_memory_gb": then}
    ended = make_trace(status="RUNTIME_ERROR", extra={"run": run}, log=log)
    assert decide(ended, limits=JobLimits(memory_gb=now)).action == action
    assert (
        decide(make_trace(status="RUNTIME_ERROR", extra={"run": run}), limits=JobLimits(memory_gb=9.0)).action == "skip"
    )


def test_a_timeout_that_was_retried_since_is_not_retried_again():
    traces = [make_trace(status="TIMEOUT"), make_trace()]
    assert decide(*traces, retry_timeouts=True) == Decision("skip")


def test_a_missing_baseline_is_measured_when_it_is_wanted():
    unmeasured = make_trace(reference_ms=0.0)
    assert decide(unmeasured) == Decision("redo", "baseline was not measured")
    assert decide(unmeasured, needs_baseline=False) == Decision("skip")
    assert decide(unmeasured, make_trace()) == Decision("skip")


def test_the_protocol_s_number_is_the_last_one_that_is_told_of():
    source = Path(resume.__file__).read_text(encoding="utf-8")
    (told,) = re.findall(r'^PROTOCOL: Final = \d+\n"""(.*?)"""', source, re.DOTALL | re.MULTILINE)
    assert [int(number) for number in re.findall(r" (\d+): ", told)] == [*range(2, PROTOCOL + 1)]
