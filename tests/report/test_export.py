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
from flashinfer_bench.report.export import write_export
from tests.conftest import CHECKOUT
from tests.kit import make_trace, make_workload, write_trace_set
from tests.report.made import on, set_of

RECORD = {
    "method": "cupti",
    "interval95_ms": [0.9, 1.1],
    "samples": 30,
    "trials": 3,
    "flags": ["noisy", "unconfirmed"],
    "confirmed": False,
}
RUN = {"seed": 2**62, "fingerprint": {"solution": "ab", "definition": "cd"}}
HOSTILE = 'a,"b\n\u202e</script>\u2028=1+1'


@pytest.fixture
def small(tmp_path):
    roofline = {"flops": 1e9, "bytes": 2e6, "share": 0.5}
    traces = [
        on("w0", latency=1.0, speedup=4.0, record=RECORD, run=RUN, roofline=roofline),
        on("w1", status="RUNTIME_ERROR", log=HOSTILE),
        on("w2", speedup=0.0, record=None),
    ]
    found = set_of(*traces)
    workloads = [make_trace(workload=make_workload(f"w{index}"), solution=None) for index in range(3)]
    parts = {"definitions": [*found.definitions.values()], "solutions": found.solutions["double"]}
    return TraceSet.from_path(write_trace_set(tmp_path, workloads=workloads, traces=traces, **parts))


def rows_of(*traces, trace_set=None):
    return [make_row(item) for item in list_results(trace_set, traces, latest_only=False)]


def exported(trace_set, form):
    text = io.StringIO(newline="")
    assert write_export(text, form, trace_set, trace_set.traces["double"]) == len(trace_set.traces["double"])
    text.seek(0)
    return text


def test_a_row_has_the_figures_of_its_trace_and_what_was_not_measured_is_absent(small):
    first, failed, unmeasured = rows_of(*small.traces["double"], trace_set=small)
    wanted = {"latency_low_ms": 0.9, "latency_high_ms": 1.1, "samples": 30, "author": "by_x", "op_type": "test"}
    wanted |= {"speedup": 4.0, "flags": "noisy unconfirmed", "roofline_share": 0.5, "seed": str(2**62)}
    wanted |= {"solution_digest": "ab", "is_confirmed": False, "confirmed": False, "is_latest": True}
    assert {name: first[name] for name in wanted} == wanted
    absent = ("latency_ms", "speedup", "flags", "is_meaningful", "confirmed", "method")
    assert [failed[name] for name in absent[:-1]] == [None] * 5
    assert [unmeasured[name] for name in ("latency_ms", "reference_latency_ms", "speedup", "method")] == [
        1.0,
        None,
        None,
        None,
    ]


def test_a_trace_that_was_judged_again_is_not_the_latest():
    assert [row["is_latest"] for row in rows_of(on(), on(timestamp="2026-01-02T03:04:05Z"))] == [False, True]


@pytest.mark.parametrize(
    "extra",
    [
        {"measurement": {"interval95_ms": "wide", "samples": [], "flags": 3, "min_ms": 0.5}},
        {"measurement": [1], "roofline": 7, "run": {"seed": "x", "fingerprint": []}, "evaluator": {}},
    ],
)
def test_records_of_another_form_count_as_absent(extra):
    (row,) = rows_of(make_trace(extra=extra))
    assert (row["latency_low_ms"], row["samples"], row["seed"], row["evaluator"]) == (None, None, None, None)
    assert row["min_ms"] == (0.5 if "min_ms" in extra["measurement"] else None)


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
def test_a_row_says_what_bounds_a_latency_and_whether_that_settles_it(record, is_confirmed):
    (row,) = rows_of(on(record={"assurance": "full", **record}))
    assert (row["is_confirmed"], row["assurance"], row["bound"]) == (is_confirmed, "full", record.get("bound"))
    assert row["confirmed"] is True


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_hostile_texts_come_back_as_they_were(small, form):
    text = exported(small, form)
    rows = list(csv.DictReader(text)) if form == "csv" else [json.loads(line) for line in text.read().split("\n")[:-1]]
    assert list(rows[0]) == [column.name for column in COLUMNS]
    assert rows[1]["log"] == HOSTILE


def test_frames_parquet_and_csv_have_the_same_dtypes_and_values(small, tmp_path):
    pandas = pytest.importorskip("pandas", reason="the extra `export` brings pandas")
    dtypes = {column.name: DTYPES_OF_FRAMES[column.kind] for column in COLUMNS}
    small.traces["double"].append(on("w3", "NA"))
    made = small.to_dataframe()
    assert {name: str(dtype) for name, dtype in made.dtypes.items()} == dtypes
    assert (made["timestamp"].dt.year.tolist(), made["speedup"].mean()) == ([2025] * 4, 6.0)
    assert TraceSet().to_dataframe().empty
    asked = {name: dtype for name, dtype in dtypes.items() if name != "timestamp"}
    read = pandas.read_csv(exported(small, "csv"), keep_default_na=False, na_values=[""], dtype=asked)
    assert {name: str(read[name].dtype) for name in asked} == asked
    given = made.replace("", None)  # CSV does not tell an empty text from an absent one
    assert all(read[name].equals(given[name]) for name in asked)
    pytest.importorskip("pyarrow", reason="the extra `export` brings pyarrow")
    target = tmp_path / "out.parquet"
    assert main(["report", "export", str(target), "--local", str(tmp_path)]) == 0
    table = pandas.read_parquet(target)
    assert (list(table["log"])[1], str(table["samples"].dtype)) == (HOSTILE, "Int64")
    assert str(table["timestamp"].dtype) == dtypes["timestamp"]


def test_without_pandas_the_error_names_the_extra():
    with pytest.raises(ConfigError, match=r"flashinfer-bench\[export\]"):
        import_export_library("no_such_library")


def test_a_folder_gets_a_file_and_stdout_takes_no_parquet(small, tmp_path, capsys):
    export = ["report", "export", "--local", str(tmp_path)]
    assert main([*export, str(tmp_path), "--format", "jsonl"]) == 0
    assert len((tmp_path / "traces.jsonl").read_text().splitlines()) == len(small.traces["double"])
    capsys.readouterr()
    assert main([*export, "-"]) == 0
    assert capsys.readouterr().out.startswith("definition,op_type,")
    assert main([*export, "-", "--format", "parquet"]) == 2


def test_the_document_lists_the_columns_of_the_code():
    page = (CHECKOUT / "docs" / "export.md").read_text()
    for one in COLUMNS:
        assert f"| `{one.name}` | {one.kind} | `{DTYPES_OF_FRAMES[one.kind]}` | {one.meaning} |\n" in page
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)
