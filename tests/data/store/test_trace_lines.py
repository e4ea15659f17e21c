"""Lines of traces: the stored fields equal the fields of the models, and an unusual line is not stored as a line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.data import Trace, TraceSet
from flashinfer_bench.data.measurement import read_reported
from flashinfer_bench.data.store.parse import Location, parse_line
from flashinfer_bench.data.store.trace_lines import TraceLine, TraceList, kept_of, read_trace_line
from tests.kit import make_definition, make_trace, make_workload, write_trace_set
from tests.report.made import best_by_workload, summarise

RUN = {"fingerprint": {"definition": "d", "solution": "s", "protocol": "1", "sandbox": "none"}, "seed": 1 << 61}
MEASUREMENT = {"method": "cupti", "cache_state": "cold", "flags": ["noisy"], "burst_ms": 1.5, "assurance": "full"}
PASSED = make_trace(extra={"run": RUN, "measurement": MEASUREMENT, "reads": 10})
FAILED = make_trace(solution="other", status="RUNTIME_ERROR", log="it broke: 1\n")
OLD = make_trace(workload=make_workload("w1", inputs={"x": 2.5}), solution="old", extra=None)
ODD_RECORDS = [
    ("somebody's", [1]),
    ({"fingerprint": {"protocol": 1, "sandbox": None}}, {"flags": "noisy"}),
    ({"quick": True}, {"method": None, "samples": 3, "median_ms": True}),
    ({"quick": 1, "seed": True}, {"flags": ["noisy", 1], "assurance": 0}),
    ({"seed": 1 << 200}, {"burst_ms": "1"}),
]
ODD = [make_trace(solution="odd", extra={"run": run, "measurement": record}) for run, record in ODD_RECORDS]
OTHERS = [make_trace(solution=name, log=text) for name in ("größer", "x") for text in ("\N{SNOWMAN}", "x[" * 3000)]
TRACES = [PASSED, FAILED, OLD, *ODD, *OTHERS]


def text_of(trace: Trace) -> bytes:
    return trace.to_json().encode()


def lines_of(traces) -> TraceList:
    return TraceList([read_trace_line(text_of(trace)) for trace in traces])


def check_alike(line: TraceLine | None, trace: Trace) -> None:
    assert line is not None
    assert line.to_trace() == trace
    assert (line.definition, line.solution, line.workload) == (trace.definition, trace.solution, trace.workload)
    kept, whole = line.evaluation, trace.evaluation
    for name in ("status", "log", "timestamp", "environment", "extra"):
        assert getattr(kept, name) == getattr(whole, name)
    for part in ("correctness", "performance"):
        read, wanted = getattr(kept, part), getattr(whole, part)
        names = [] if wanted is None else [name for name in type(wanted).model_fields if name != "extra"]
        assert (read is None) == (wanted is None)
        assert [getattr(read, name) for name in names] == [getattr(wanted, name) for name in names]
    assert read_reported(kept) == read_reported(whole)


@pytest.mark.parametrize("trace", TRACES, ids=range(len(TRACES)))
def test_a_line_has_the_fields_of_its_model(trace):
    check_alike(read_trace_line(text_of(trace)), trace)


def test_loaded_and_merged_sets_hold_lines_and_count_them_as_models(tmp_path):
    loaded = TraceSet.from_path(write_trace_set(tmp_path, definitions=[make_definition()], traces=TRACES))
    in_memory = TraceSet(definitions=loaded.definitions, traces={"double": TRACES})
    lines = loaded.traces["double"].data
    assert loaded.summary() == in_memory.summary()
    assert summarise(lines, {("double", "old"): {"w": 1.0}}) == summarise(TRACES, {("double", "old"): {"w": 1.0}})
    assert best_by_workload(lines) == best_by_workload(TRACES)
    merged = TraceSet.merge([loaded, loaded]).traces["double"]
    assert [isinstance(line, TraceLine) for line in kept_of(merged)] == [True] * 2 * len(TRACES)


WHOLE = text_of(PASSED)
ODD_VALUES = [b"NaN", b"01", b'"\xff"', b'"\\ud800"', b"9" * 5000, b"[" * 300 + b"]" * 300]
ODD_PARTS = [
    {"definition": ""},
    {"remark": "hand-made"},
    {"workload": {"uuid": "w0", "axes": {"n": True}}},
    {"workload": {"uuid": "w0", "axes": {"n": 8}, "axis": 1}},
    *(
        {"evaluation": PASSED.to_dict()["evaluation"] | parts}
        for parts in (
            {"performance": None},
            {"correctness": None},
            {"performance": {"latency_ms": -1.0}},
            {"correctness": {"max_relative_error": "NaN"}},
            {"environment": {"device": "H100"}},
            {"extra": []},
            {"log": None},
        )
    ),
]


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[]", WHOLE[:-1], WHOLE + b"}"),
        *(WHOLE.replace(b'"reads":10', b'"reads":' + value) for value in ODD_VALUES),
        *(json.dumps(PASSED.to_dict() | parts).encode() for parts in ODD_PARTS),
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
    for offset, gone, piece in changes:
        offset %= len(text)
        text = text[:offset] + piece + text[offset + gone :]
    line = read_trace_line(text)
    if line is not None:
        issues = []
        trace = parse_line(Trace, text, Location(Path("traces.jsonl"), line=1), issues)
        assert issues == []
        check_alike(line, trace)


def test_the_last_of_two_equal_keys_counts_as_in_models():
    text = WHOLE.replace(b'{"definition":', b'{"definition":"first","workload":{},"definition":', 1)
    check_alike(read_trace_line(text), PASSED)


@pytest.mark.parametrize(
    "use",
    [
        lambda traces: [traces[1], traces[-2:], repr(traces), list(traces)],
        lambda traces: [traces + [FAILED], [FAILED] + traces],  # noqa: RUF005 - as scripts do
        lambda traces: [traces.index(OLD), OLD in traces, traces == TRACES],
        lambda traces: [traces.pop(), traces.remove(OLD), traces],
        lambda traces: pickle.loads(pickle.dumps(traces)),
    ],
)
def test_a_list_of_lines_behaves_like_a_list_of_traces(use):
    assert use(lines_of(TRACES)) == use(list(TRACES))
