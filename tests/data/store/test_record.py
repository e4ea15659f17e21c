"""Recording traces: where they go, and that they can be read back."""

from __future__ import annotations

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.store.record import TraceWriter
from tests.kit import make_definition, make_solution, make_trace, write_trace_set


def test_a_trace_goes_to_the_file_of_author_and_definition(tmp_path):
    trace = make_trace()
    path = TraceWriter(tmp_path).append(trace, author="alice", op_type="test")
    assert path == tmp_path / "traces/alice/test/double.jsonl"
    assert path.read_text() == trace.to_json() + "\n"


def test_a_log_with_every_character_stays_one_line(tmp_path):
    trace = make_trace(log="a\nb\r\n\u2028\x00\x1b[31m\ud7ff\U0001f600")
    path = TraceWriter(tmp_path).append(trace, author="alice", op_type="test")
    assert path.read_bytes().count(b"\n") == 1


def test_names_that_are_no_paths_are_recorded_and_load_without_an_issue(tmp_path):
    definition, solution = make_definition("../../x"), make_solution("a/b", definition="../../x", author="../bob")
    write_trace_set(tmp_path, definitions=[definition], solutions=[solution])
    trace = make_trace(definition="../../x", solution="a/b")
    path = TraceWriter(tmp_path).append(trace, author="../bob", op_type="test")
    loaded = TraceSet.from_path(tmp_path)
    assert path.resolve().is_relative_to(tmp_path.resolve())
    assert loaded.issues == []
    assert loaded.traces == {"../../x": [trace]}


def test_a_torn_tail_is_a_warning_until_the_next_append_mends_it(tmp_path):
    write_trace_set(tmp_path, definitions=[make_definition()], solutions=[make_solution()], traces=[make_trace()])
    path = tmp_path / "traces/alice/test/double.jsonl"
    with path.open("a") as handle:
        handle.write(make_trace().to_json()[:100])
    (issue,) = TraceSet.from_path(tmp_path).issues
    assert (issue.severity, issue.line) == ("warning", 2)
    TraceWriter(tmp_path).append(make_trace(status="TIMEOUT"), author="alice", op_type="test")
    assert TraceSet.from_path(tmp_path).issues == []
    assert len(TraceSet.from_path(tmp_path).traces["double"]) == 2
