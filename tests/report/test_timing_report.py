"""How times came about, counted and in words."""

from dataclasses import asdict

import pytest

from flashinfer_bench.bench.planning.resume import PROTOCOL
from flashinfer_bench.report.best import best_by_workload
from flashinfer_bench.report.summary import summarise
from flashinfer_bench.report.timing import describe_bounds, describe_flag, describe_ways, flags_of, read_timing
from flashinfer_bench.timing.flags import FLAGS, find_flags
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR, Sample, Trial
from flashinfer_bench.timing.nvml import GpuState
from tests.kit import make_evaluation, make_trace, make_workload

LOST = "CUPTI is not installed. Try 'pip install -U cupti-python'. Falling back to CUDA events."


def timed(method="cupti", *, cache_state="cold", launch="stream", **record):
    measurement = {"method": method, "cache_state": cache_state, "launch": launch, **record}
    return make_evaluation(extra={"measurement": measurement})


def said(*evaluations):
    return describe_ways([read_timing([evaluation]) for evaluation in evaluations])


@pytest.mark.parametrize(
    ("evaluations", "line"),
    [
        ([timed()], "timed by CUPTI, cold L2"),
        ([timed(launch="graph")] * 2, "timed by CUPTI, cold L2, all as replays of CUDA graphs"),
        ([timed(launch="graph"), timed()], "timed by CUPTI, cold L2, 1 of them as replays of CUDA graphs"),
        (
            [timed(), timed(), timed("cuda_events", fallback=LOST)],
            "timed 2 of 3 by CUPTI, cold L2; 1 of 3 by CUDA events, cold L2 "
            "(CUPTI is not installed. Try 'pip install -U cupti-python')",
        ),
        ([timed("cuda_events", cache_state="warm", fallback=EVENTS_ASKED_FOR)], "timed by CUDA events, warm L2"),
        ([timed("wall", cache_state="warm", launch="")], "timed by the wall clock"),
        ([timed(), make_evaluation()], "timed 1 of 2 by CUPTI, cold L2; 1 of 2 do not say how"),
        ([make_evaluation()], None),
        ([make_evaluation("TIMEOUT")], None),
    ],
    ids=["one", "graphs", "some graphs", "fall-back", "asked for", "cpu", "mixed", "unknown", "failed"],
)
def test_a_line_says_how_times_were_taken(evaluations, line):
    assert said(*evaluations) == line


def test_flags_are_counted_in_a_fixed_order():
    timing = read_timing([timed(flags=["noisy"]), timed(flags=["new_one", "host_bound", "noisy"]), timed()])
    assert dict(timing.flags) == {"host_bound": 1, "noisy": 2, "new_one": 1}
    assert flags_of([timing]) == ["host_bound", "noisy", "new_one"]
    assert describe_flag("noisy", [timing]) == f"noisy, 2 of 3: {FLAGS['noisy']}"
    assert describe_flag("new_one", [timing]) == "new_one, 1 of 3"


def test_a_time_that_means_nothing_has_no_flags():
    told, untold = (timed("wall", flags=["too_few_samples"], **more) for more in ({}, {"meaningful": False}))
    assert dict(read_timing([told, untold]).flags) == {"too_few_samples": 1}
    assert dict(read_timing([untold]).flags) == {}


@pytest.mark.parametrize("record", [{"flags": "noisy"}, {"flags": {"a": 1}}, {"method": ["x"], "flags": [1, "a\x1b"]}])
def test_measurements_of_foreign_files_cannot_break_a_report(record):
    timing = read_timing([make_evaluation(extra={"measurement": record})])
    assert all(flag.isprintable() for flag in timing.flags)


def test_every_flag_of_a_measurement_has_a_meaning():
    found = ("waits_inside", "side_stream", "lines_reset", "operations_vary")
    facts = {**dict.fromkeys(found, True), "method": "cupti", "enqueue_ns": 10**9, "launch": "graph"}
    slow = GpuState(1000, 1000, 100.0, 90, ("hw_thermal",), 2)
    lone = Trial((Sample(span_ns=10**6, enqueue_ns=1),), "count", {"method": "cuda_events", "launch": "stream"})
    trials = [lone, Trial((Sample(span_ns=10**7, enqueue_ns=1, busy_ns=10**8, operations=1),), "count", facts)]
    busy = set(find_flags(trials, is_noisy=True, before=slow, after=slow))
    idle = Trial((Sample(span_ns=0, enqueue_ns=5, busy_ns=0, operations=0),), "count", {"method": "cupti"})
    # by the session: tests/bench/runner/workers/test_measuring.py, tests/bench/runner/session/test_judged_calls.py
    added = {"unconfirmed", "same_inputs", "constant_output", "regimes_left_out"}
    assert busy | added | set(find_flags([idle], is_noisy=False, before=None, after=None)) == set(FLAGS)


@pytest.mark.parametrize(
    ("fingerprint", "marks"),
    [
        (None, []),
        ({"protocol": str(PROTOCOL), "sandbox": "walls"}, []),
        ({"protocol": str(PROTOCOL - 1), "sandbox": "walls"}, ["older_protocol"]),
        ({"hardware": "x"}, ["older_protocol"]),
        ({"protocol": str(PROTOCOL), "sandbox": "none"}, ["no_walls"]),
    ],
)
def test_verdicts_of_an_older_protocol_and_without_walls_are_marked(fingerprint, marks):
    evaluation = timed(flags=["noisy"])
    extra = {**evaluation.extra, "run": {"fingerprint": fingerprint}}
    timing = read_timing([evaluation.model_copy(update={"extra": extra})])
    assert list(timing.flags) == ["noisy", *marks]
    assert all(": " in describe_flag(mark, [timing]) for mark in marks)


def test_rows_carry_methods_and_flags():
    traces = [
        make_trace(workload=make_workload(uuid), evaluation=timed(flags=["noisy"]) if uuid == "a" else timed())
        for uuid in ("a", "b")
    ]
    (row,) = summarise(traces)
    assert asdict(row)["timing"] == {
        "ways": ({"method": "cupti", "cache_state": "cold", "launch": "stream", "fallback": "", "workloads": 2},),
        "unknown": 0,
        "flags": {"noisy": 1},
        "bounds": {},
        "assurances": {},
    }
    assert [dict(best.timing.flags) for best in best_by_workload(traces)] == [{"noisy": 1}, {}]


def test_a_line_says_by_what_latencies_are_bound_and_at_which_assurance():
    chain, floor = ({"bound": bound, "assurance": "standard"} for bound in ("chain", "floor"))
    timings = [read_timing([timed(**record) for record in (chain, chain, floor, {})])]
    told = "latencies bound at standard assurance: 2 by a gated chain of calls, 1 by the least time"
    assert describe_bounds(timings).startswith(told)
    assert describe_bounds([read_timing([timed()])]) is None
    indicative = read_timing([timed("wall", bound="none"), timed("wall", bound="none")])
    assert describe_bounds([indicative]) == "latencies bound: all by nothing (indicative)"
