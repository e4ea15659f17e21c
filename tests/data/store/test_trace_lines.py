"""Lines of traces: what is kept of them is what their models say, and a line that is odd in any way is no line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.planning.resume import RecordedJobs, read_fingerprint
from flashinfer_bench.data import Trace, TraceSet
from flashinfer_bench.data.measurement import read_measurement, tell
from flashinfer_bench.data.store.parse import Place, parse_line
from flashinfer_bench.data.store.trace_lines import TraceLine, TraceList, kept_of, read_trace_line
from flashinfer_bench.report.summary import best_by_workload, summarise
from flashinfer_bench.report.timing import read_timing
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

RUN = {
    "fingerprint": {"definition": "d", "solution": "s", "protocol": "1", "sandbox": "none"},
    "seed": 1 << 61,
    "timeout_seconds": 300,
    "config": {"rtol": 0.01},
}
MEASUREMENT = {
    "method": "cupti",
    "cache_state": "cold",
    "launch": "graph",
    "flags": ["noisy"],
    "confirmed": False,
    "burst_ms": 1.5,
    "burst_resolution_ms": 0.25,
}
PASSED = make_trace(extra={"run": RUN, "measurement": MEASUREMENT, "reads": 10})
FAILED = make_trace(solution="other", status="RUNTIME_ERROR", log="it broke: 1\n")
OLD = make_trace(workload=make_workload("w1", inputs={"x": 2.5}), solution="old", extra=None)
ODD = make_trace(solution="odd", extra={"run": "somebody's", "measurement": [1], "note": None})
TRACES = [PASSED, FAILED, OLD, ODD]


def _text(trace: Trace) -> bytes:
    return trace.to_json().encode()


def _lines(*traces: Trace) -> TraceList:
    kept = TraceList()
    for trace in traces or TRACES:
        line = read_trace_line(_text(trace))
        assert line is not None
        kept.append(line)
    return kept


def _facts(evaluation):
    one, checked, measured = evaluation, evaluation.correctness, evaluation.performance
    return [
        (one.status, one.log, one.timestamp, one.environment),
        checked and (checked.max_relative_error, checked.max_absolute_error),
        measured and (measured.latency_ms, measured.reference_latency_ms, measured.speedup_factor),
    ]


def _check_alike(lines: TraceList, trace: Trace) -> None:
    (line,) = lines.data
    assert isinstance(line, TraceLine)
    assert line.to_trace() == trace
    assert (line.definition, line.solution, line.workload) == (trace.definition, trace.solution, trace.workload)
    assert _facts(line.evaluation) == _facts(trace.evaluation)


ODD_ENTRIES = [
    ({"fingerprint": {"protocol": 1, "sandbox": None}}, {"flags": "noisy"}),
    ({"quick": True}, {"method": None, "samples": 3, "median_ms": True}),
    ({"quick": 1, "seed": True}, {"flags": ["noisy", 1], "confirmed": 0}),
    ({"seed": 1 << 200, "timeout_seconds": "300"}, {"burst_ms": "1"}),
    ({"worker_memory_gb": 2, "timeout_seconds": False}, {"samples_ns": [[1, 2.5], [3]]}),
]
ODD_EXTRAS = [
    None,
    {"run": None, "measurement": [MEASUREMENT]},
    *({"run": RUN | run, "measurement": MEASUREMENT | measurement} for run, measurement in ODD_ENTRIES),
]


@pytest.mark.parametrize("extra", ODD_EXTRAS, ids=range(len(ODD_EXTRAS)))
def test_what_is_read_of_extra_is_the_same_of_a_line_and_of_a_model(extra):
    trace = make_trace(extra=extra)
    (line,) = _lines(trace).data
    assert line.evaluation.extra == extra
    for read in (read_measurement, read_fingerprint, tell):
        assert read(line.evaluation) == read(trace.evaluation)
    assert read_timing([line.evaluation]) == read_timing([trace.evaluation])
    mark = RUN["fingerprint"] | {"hardware": "test device"}
    job = Job(0, make_definition(), trace.workload, make_solution(), None, mark)
    config = BenchmarkConfig(timeout_seconds=301)
    assert RecordedJobs([line]).decide(job, config)[:2] == RecordedJobs([trace]).decide(job, config)[:2]


def test_tables_and_plans_of_lines_are_those_of_models():
    lines = _lines()
    for trace in TRACES:
        _check_alike(_lines(trace), trace)
    assert summarise(lines.data, {("double", "old"): ["w"]}) == summarise(TRACES, {("double", "old"): ["w"]})
    assert best_by_workload(lines.data) == best_by_workload(TRACES)


def test_a_loaded_set_and_a_merged_one_hold_lines_and_count_them_as_models(tmp_path):
    loaded = TraceSet.from_path(write_trace_set(tmp_path, definitions=[make_definition()], traces=TRACES))
    in_memory = TraceSet(definitions=loaded.definitions, traces={"double": TRACES})
    assert loaded.summary() == in_memory.summary()
    assert loaded.latest_traces("double") == in_memory.latest_traces("double")
    merged = TraceSet.merge([loaded, loaded]).traces["double"]
    assert [isinstance(line, TraceLine) for line in kept_of(merged)] == [True] * 2 * len(TRACES)


WHOLE = _text(PASSED)
ODD_VALUES = [b"NaN", b"01", b'"\xff"', b'"\\ud800"', b"9" * 5000, b"[" * 300 + b"]" * 300]
ODD_PARTS = [
    {"definition": ""},
    {"remark": "hand-made"},
    {"workload": {"uuid": "w0", "axes": {"n": True}}},
    {"workload": {"uuid": "w0", "axes": {"n": 8}, "axis": 1}},
]
ODD_EVALUATIONS = [
    {"performance": None},
    {"correctness": None},
    {"performance": {"latency_ms": -1.0}},
    {"correctness": {"max_relative_error": "NaN"}},
    {"environment": {"device": "H100"}},
    {"extra": []},
    {"log": None},
]


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[]", WHOLE[:-1], WHOLE + b"}"),
        *(WHOLE.replace(b'"reads":10', b'"reads":' + value) for value in ODD_VALUES),
        *(json.dumps(PASSED.to_dict() | parts).encode() for parts in ODD_PARTS),
        *(
            json.dumps({**PASSED.to_dict(), "evaluation": PASSED.to_dict()["evaluation"] | parts}).encode()
            for parts in ODD_EVALUATIONS
        ),
    ],
)
def test_a_line_that_is_odd_is_for_the_models(text):
    assert read_trace_line(text) is None


PIECES = [*(bytes([one]) for one in b'"\\{}[],:1-.\xff'), b"e5", b"null", b"\xc3\xa9", b'",']
CHANGES = st.lists(st.tuples(st.integers(0, 999), st.integers(0, 3), st.sampled_from(PIECES)), min_size=1, max_size=2)


@settings(max_examples=150)
@given(CHANGES)
def test_no_line_is_kept_that_the_models_would_refuse_or_remark_on(changes):
    text = WHOLE
    for place, gone, piece in changes:
        place %= len(text)
        text = text[:place] + piece + text[place + gone :]
    line = read_trace_line(text)
    if line is not None:
        issues = []
        trace = parse_line(Trace, text, Place(Path("traces.jsonl"), line=1), issues)
        assert issues == []
        _check_alike(TraceList([line]), trace)


def test_the_last_of_two_equal_keys_counts_as_in_models():
    text = WHOLE.replace(b'{"definition":', b'{"definition":"first","workload":{},"definition":', 1)
    _check_alike(TraceList([read_trace_line(text)]), PASSED)


@pytest.mark.parametrize("log", ["\N{SNOWMAN}", "x" * 5000, "[" * 300])
def test_long_lines_and_other_alphabets_are_kept_too(log):
    named = make_trace(solution="größer", log=log)
    _check_alike(_lines(named), named)


@pytest.mark.parametrize(
    "use",
    [
        list,
        lambda traces: [traces[1], traces[-2:], repr(traces)],
        lambda traces: [traces + [FAILED], [FAILED] + traces],  # noqa: RUF005 - as scripts do
        lambda traces: [traces.index(OLD), OLD in traces, traces == TRACES],
        lambda traces: [traces.pop(), traces.remove(OLD), traces],
        lambda traces: pickle.loads(pickle.dumps(traces)),
    ],
)
def test_a_list_of_lines_behaves_like_a_list_of_traces(use):
    assert use(_lines()) == use(list(TRACES))
