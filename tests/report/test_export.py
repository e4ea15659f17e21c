"""Traces as CSV, JSON lines, Parquet and data frames."""

import csv
import io
import json

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.columns import COLUMNS, DTYPES_OF_FRAMES, import_export_library, make_row
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.report.export import render_columns, write_export
from tests.conftest import CHECKOUT
from tests.kit import make_definition, make_evaluation, make_solution, make_trace, make_workload, write_trace_set

RECORD = {
    "measurement": {
        "method": "cupti",
        "interval95_ms": [0.9, 1.1],
        "samples": 30,
        "trials": 3,
        "flags": ["noisy", "unconfirmed"],
        "confirmed": False,
    },
    "roofline": {"flops": 1e9, "bytes": 2e6, "share": 0.5},
    "run": {"seed": 2**62, "fingerprint": {"solution": "ab", "definition": "cd"}},
}
HOSTILE = 'a,"b\n\u202e</script>\u2028=1+1'


@pytest.fixture
def small(tmp_path):
    traces = [
        make_trace(workload=make_workload("w0"), latency_ms=1.0, speedup=4.0, extra=RECORD),
        make_trace(workload=make_workload("w1"), status="RUNTIME_ERROR", log=HOSTILE),
        make_trace(workload=make_workload("w2"), evaluation=make_evaluation(speedup=0.0)),
    ]
    write_trace_set(
        tmp_path,
        definitions=[make_definition()],
        solutions=[make_solution()],
        workloads=[make_trace(workload=make_workload(f"w{index}"), solution=None) for index in range(3)],
        traces=traces,
    )
    return TraceSet.from_path(tmp_path)


def rows_of(trace_set):
    return [make_row(item) for item in list_results(trace_set, trace_set.traces["double"], latest_only=False)]


def test_a_row_has_the_figures_of_its_trace(small):
    first = rows_of(small)[0]
    assert (first["latency_low_ms"], first["latency_high_ms"], first["samples"]) == (0.9, 1.1, 30)
    assert (first["author"], first["op_type"], first["speedup"]) == ("alice", "test", 4.0)
    assert (first["flags"], first["roofline_share"], first["seed"]) == ("noisy unconfirmed", 0.5, str(2**62))
    assert (first["solution_digest"], first["is_confirmed"], first["is_latest"]) == ("ab", False, True)


def test_what_was_not_measured_is_absent(small):
    _, failed, unmeasured = rows_of(small)
    assert [failed[name] for name in ("latency_ms", "speedup", "flags", "is_meaningful")] == [None] * 4
    assert (unmeasured["latency_ms"], unmeasured["reference_latency_ms"], unmeasured["speedup"]) == (1.0, None, None)


def test_a_trace_that_was_judged_again_is_not_the_latest():
    again = make_evaluation(timestamp="2026-01-02T03:04:05Z")
    trace_set = TraceSet(traces={"double": [make_trace(), make_trace(evaluation=again)]})
    assert [row["is_latest"] for row in rows_of(trace_set)] == [False, True]


@pytest.mark.parametrize(
    "extra",
    [
        {"measurement": {"interval95_ms": "wide", "samples": [], "flags": 3, "min_ms": 0.5}},
        {"measurement": [1], "roofline": 7, "run": {"seed": "x", "fingerprint": []}, "evaluator": {}},
    ],
)
def test_records_of_another_form_count_as_absent(extra):
    trace_set = TraceSet(traces={"double": [make_trace(extra=extra)]})
    (row,) = rows_of(trace_set)
    assert (row["latency_low_ms"], row["samples"], row["seed"], row["evaluator"]) == (None, None, None, None)
    assert row["min_ms"] == (0.5 if "min_ms" in extra["measurement"] else None)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_hostile_texts_come_back_as_they_were(small, form):
    text = io.StringIO(newline="")
    traces = [trace for part in small.traces.values() for trace in part]
    assert write_export(text, form, small, traces) == 3
    text.seek(0)
    rows = list(csv.DictReader(text)) if form == "csv" else [json.loads(line) for line in text.read().split("\n")[:-1]]
    assert list(rows[0]) == [column.name for column in COLUMNS]
    assert rows[1]["log"] == HOSTILE


def test_the_frame_has_the_right_dtypes(small):
    pytest.importorskip("pandas", reason="the extra `export` brings pandas")
    table = small.to_dataframe()
    assert {name: str(dtype) for name, dtype in table.dtypes.items()} == {
        column.name: DTYPES_OF_FRAMES[column.kind] for column in COLUMNS
    }
    assert table["speedup"].mean() == 4.0
    assert table["timestamp"].dt.year.tolist() == [2025] * 3
    assert TraceSet().to_dataframe().empty


def test_parquet_loads_with_the_same_dtypes(small, tmp_path):
    pandas = pytest.importorskip("pandas", reason="the extra `export` brings pandas")
    pytest.importorskip("pyarrow", reason="the extra `export` brings pyarrow")
    target = tmp_path / "out.parquet"
    assert main(["report", "export", str(target), "--local", str(tmp_path)]) == 0
    table = pandas.read_parquet(target)
    assert list(table["log"])[1] == HOSTILE
    assert str(table["samples"].dtype) == "Int64"
    assert str(table["timestamp"].dtype) == "datetime64[ns, UTC]"


def test_csv_loads_with_the_dtypes_that_are_asked_for(small):
    pandas = pytest.importorskip("pandas", reason="the extra `export` brings pandas")
    small.traces["double"].append(make_trace(workload=make_workload("w3"), solution="NA", latency_ms=1.0))
    text = io.StringIO(newline="")
    write_export(text, "csv", small, small.traces["double"])
    text.seek(0)
    asked = {column.name: DTYPES_OF_FRAMES[column.kind] for column in COLUMNS if column.kind != "time"}
    table = pandas.read_csv(text, keep_default_na=False, na_values=[""], dtype=asked)
    assert {name: str(table[name].dtype) for name in asked} == asked
    made = small.to_dataframe().replace("", None)  # CSV does not tell an empty text from an absent one
    assert all(table[name].equals(made[name]) for name in asked)


def test_without_pandas_the_error_names_the_extra(small):
    with pytest.raises(ConfigError, match=r"flashinfer-bench\[export\]"):
        import_export_library("no_such_library")


def test_a_folder_gets_a_file_and_stdout_takes_no_parquet(small, tmp_path, capsys):
    assert main(["report", "export", str(tmp_path), "--format", "jsonl", "--local", str(tmp_path)]) == 0
    assert len((tmp_path / "traces.jsonl").read_text().splitlines()) == 3
    capsys.readouterr()
    assert main(["report", "export", "-", "--local", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("definition,op_type,")
    assert main(["report", "export", "-", "--format", "parquet", "--local", str(tmp_path)]) == 2


def test_the_document_lists_the_columns_of_the_code():
    assert render_columns() in (CHECKOUT / "docs" / "export.md").read_text()
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)


@pytest.mark.parametrize(
    ("record", "is_confirmed"),
    [
        ({"confirmed": False, "bound": "chain"}, False),
        ({"bound": "chain"}, True),
        ({"bound": "batch", "flags": ["unconfirmed"]}, False),
        ({"bound": "floor"}, True),
        ({"bound": "none", "flags": ["unconfirmed"]}, None),
        ({}, None),
    ],
    ids=["older", "settled", "not settled", "by the floor", "on a CPU", "not told"],
)
def test_a_row_says_what_bounds_a_latency_and_whether_that_settles_it(tmp_path, record, is_confirmed):
    extra = {"measurement": {"assurance": "full", **record}}
    write_trace_set(
        tmp_path,
        definitions=[make_definition()],
        solutions=[make_solution()],
        workloads=[make_trace(workload=make_workload("w0"), solution=None)],
        traces=[make_trace(workload=make_workload("w0"), extra=extra)],
    )
    (row,) = rows_of(TraceSet.from_path(tmp_path))
    assert (row["is_confirmed"], row["assurance"], row["bound"]) == (is_confirmed, "full", record.get("bound"))
