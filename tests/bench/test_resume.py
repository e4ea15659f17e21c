"""Which recorded jobs a resumed run leaves out, and why it does others again."""

from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.planning.resume import PROTOCOL, QUICK_ONLY, RecordedJobs, fingerprint
from flashinfer_bench.bench.runner.workers.worker_handle import WorkerExit
from tests.kit import make_trace, make_workload

H200 = "NVIDIA H200"
KEYS = {"definition": "d", "solution": "s", "workload": "w", "config": "c", "protocol": PROTOCOL, "sandbox": "walls"}
WANTED = fingerprint(**KEYS, evaluator="Default 1", hardware=H200)
FULL, SEEDED, OTHER_SEED = WANTED | {"assurance": "full"}, WANTED | {"seed": "1"}, WANTED | {"seed": "2"}
BOTH = WANTED | {"hardware": f"B200 + {H200}"}
QUICK, OTHER = WANTED | {"timing": "quick"}, WANTED | {"solution": "x"}
GONE = f"the worker is gone: {WorkerExit(-9, over_memory=True)}"


def without(*keys):
    return {key: value for key, value in WANTED.items() if key not in keys}


def trace(keys=WANTED, *, day=1, hardware=H200, extra=None, run=(), **parts):
    """A trace of a job; `run` is more of the record of its run."""
    extra = {"run": {"fingerprint": keys, **dict(run)}} if extra is None else extra
    when = f"2025-01-{day:02d}T00:00:00Z"
    parts = {"solution": "fast", "workload": make_workload("uuid-1"), **parts}
    return make_trace(environment={"hardware": hardware}, timestamp=when, extra=extra, **parts)


def quick(keys=QUICK, **parts):
    return trace(keys, run={"quick": True}, **parts)


def changed(*keys):
    return trace(WANTED | dict.fromkeys(keys, "old"))


def late(**run):
    return trace(status="TIMEOUT", run=run)


def timed(reference_ms, **more):
    times = {"latency_ms": 1.0, "reference_latency_ms": reference_ms, "speedup_factor": 0.0}
    return trace(performance=times, extra={"run": {"fingerprint": WANTED}, **more})


def of_library(status):
    extra = {"run": {"fingerprint": WANTED}, "measurement": {"library_kernels": "all"}}
    return trace(status=status, extra=extra | ({} if status == "PASSED" else {"library_calls": "refused"}))


NO_MARKS, SKIP = "recorded without a fingerprint", ""
CASES = [
    # recorded traces, requested settings (besides the usual), "" if it is skipped, else the reason to do it again
    ([trace()], {}, SKIP),
    *(([changed(key)], {}, f"{key} changed") for key in WANTED),
    *(([trace(without(key))], {}, f"{key} changed") for key in ("protocol", "sandbox", "evaluator")),
    ([changed("solution", "config")], {}, "solution and config changed"),
    ([trace(WANTED | {"more": "x"})], {}, "fingerprint of another form"),
    *(([trace(extra=extra)], {}, NO_MARKS) for extra in ({}, {"run": None}, {"run": {"fingerprint": ["d"]}})),
    # Of several the latest counts, by its time; settings may differ in between, the judged sources may not.
    ([changed("config"), changed("solution")], {}, "solution changed"),
    ([trace(), changed("config")], {}, SKIP),
    *(([trace(), changed(key)], {}, f"{key} changed") for key in ("definition", "solution", "workload")),
    ([trace(), trace(OTHER), trace()], {}, SKIP),
    ([trace(), trace(OTHER, hardware="B200")], {}, SKIP),
    ([trace(day=2), trace(OTHER)], {}, SKIP),
    ([trace(OTHER, day=2), trace()], {}, "solution changed"),
    ([trace(BOTH, hardware="B200")], {"keys": BOTH}, SKIP),
    # A higher assurance counts as the standard one; a seed counts if it is requested, and a secret one is a seed, too.
    ([trace(FULL)], {}, SKIP),
    ([trace()], {"keys": FULL}, "assurance changed"),
    ([trace(SEEDED)], {}, SKIP),
    ([trace(SEEDED)], {"keys": OTHER_SEED}, "seed changed"),
    ([trace()], {"keys": SEEDED}, "seed changed"),
    ([trace(run={"seed": 1})], {"keys": SEEDED}, SKIP),
    # A policy on library calls that differs from the policy of then.
    ([of_library("PASSED")], {}, SKIP),
    ([of_library("PASSED")], {"library_calls": "refuse"}, "library calls are refused now"),
    ([of_library("RUNTIME_ERROR")], {"library_calls": "refuse"}, SKIP),
    ([of_library("RUNTIME_ERROR")], {"library_calls": "allow"}, "library calls were refused"),
    # Limits that ended a job, and are larger now.
    ([late()], {}, SKIP),
    ([late()], {"retry": True}, "timed out"),
    *(([late(timeout_seconds=10)], {"timeout_seconds": limit}, SKIP) for limit in (5, 10)),
    ([late(timeout_seconds=10)], {"timeout_seconds": 11}, "timed out under a shorter limit"),
    ([trace(run={"timeout_seconds": 10})], {"timeout_seconds": 99}, SKIP),
    *(
        ([trace(status="RUNTIME_ERROR", log=log, run={"worker_memory_gb": then})], {"worker_memory_gb": now}, reason)
        for log, then, now, reason in (
            (GONE, 1.0, 2.0, "ended under a smaller limit of memory"),
            (GONE, 1, None, "ended under a smaller limit of memory"),
            (GONE, 2.0, 1.0, SKIP),
            (GONE, None, None, SKIP),
            ("ValueError", 1.0, 9.0, SKIP),
        )
    ),
    ([timed(0.0)], {}, "baseline was not measured"),
    ([timed(0.0)], {"profile_baseline": False}, SKIP),
    ([timed(0.0), timed(2.0)], {}, SKIP),
    ([timed(2.0)], {"baseline": "compile"}, "baseline was not measured"),
    ([timed(2.0)], {"baseline": "compile", "profile_baseline": False}, SKIP),
    ([timed(2.0, baseline_compile={"mode": "default"})], {"baseline": "compile"}, SKIP),
    (
        [timed(2.0, baseline_compile={"mode": "default"})],
        {"baseline": "compile:max-autotune"},
        "baseline was not measured",
    ),
    # A quick look is never resumed from; one that failed makes its job be done again.
    *(([quick(keys)], {}, QUICK_ONLY) for keys in (QUICK, WANTED)),
    ([trace(), quick(day=2)], {}, SKIP),
    ([trace(), quick(status="TIMEOUT", day=2)], {}, "failed in a quick look"),
    ([trace(), quick(status="TIMEOUT", day=2), quick(day=3)], {}, SKIP),
    ([trace(), quick(QUICK | {"solution": "x"}, day=2)], {}, QUICK_ONLY),
]


def decide(traces, keys=WANTED, name="fast", uuid="uuid-1", retry=False, **settings):
    job = SimpleNamespace(
        definition=SimpleNamespace(name="double"),
        solution=SimpleNamespace(name=name),
        workload=SimpleNamespace(uuid=uuid, timed=True),
        fingerprint=keys,
    )
    return RecordedJobs(traces, retry_timeouts=retry).decide(job, BenchmarkConfig(**settings))


@pytest.mark.parametrize(("traces", "asked", "reason"), CASES, ids=range(len(CASES)))
def test_a_recorded_job_is_skipped_or_done_again_with_the_reason(traces, asked, reason):
    decision = decide(traces, **asked)
    assert decision.reason == reason
    assert (decision.trace is not None) is not reason


def test_the_trace_of_a_skipped_job_is_the_latest_with_a_baseline_and_one_of_another_name_is_new():
    first = timed(2.0)
    assert decide([first, timed(0.0)]).trace is decide([first, quick(day=2)]).trace is first
    for key in ({"uuid": "uuid-2"}, {"name": "other"}):
        assert decide([trace(), make_trace(solution=None, workload=make_workload("uuid-2"))], **key) == ("", None)
