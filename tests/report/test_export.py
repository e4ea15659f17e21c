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
from flashinfer_bench.report.export import make_export
from tests.cli.fake_engine import write_small_set
from tests.conftest import CHECKOUT
from tests.kit import make_trace
from tests.report.made import FULL, on

HOSTILE = 'a,"b\n\u202e</script>\u2028=1+1'


@pytest.fixture
def small(tmp_path):
    record = {"interval95_ms": [0.9, 1.1], "samples": 30, "flags": ["noisy", "unconfirmed"], "bound": "chain"}
    run, roofline = {"seed": 2**62}, {"share": 0.5}
    traces = [
        on("w0", "other", speedup=4.0, record=record, run=run, roofline=roofline),
        on("w1", "other", status="RUNTIME_ERROR", log=HOSTILE),
        on("w2", "other", speedup=0.0, record=None),
    ]
    return TraceSet.from_path(write_small_set(tmp_path, workloads=3, traces=traces))


def rows_of(*traces, trace_set=None):
    return [make_row(item) for item in list_results(trace_set, traces, latest_only=False)]


def exported(trace_set, form):
    content, count, _ = make_export(form, trace_set, trace_set.traces["double"])
    assert count == len(trace_set.traces["double"])
    return io.StringIO(content.decode(), newline="")


def test_a_row_has_the_figures_of_its_trace_and_no_unmeasured_figures(small):
    first, failed, unmeasured = rows_of(*small.traces["double"], trace_set=small)
    wanted = {"latency_low_ms": 0.9, "latency_high_ms": 1.1, "samples": 30, "author": "alice", "op_type": "test"}
    wanted |= {"flags": "noisy unconfirmed", "roofline_share": 0.5, "seed": str(2**62), "confirmed": False}
    assert {name: first[name] for name in wanted} == wanted
    assert {failed[name] for name in ("latency_ms", "speedup", "flags", "is_meaningful", "confirmed")} == {None}
    assert {unmeasured[name] for name in ("reference_latency_ms", "speedup", "method")} == {None}
    others = {"measurement": [1], "roofline": 7, "run": {"seed": "x", "fingerprint": []}, "evaluator": {}}
    (foreign,) = rows_of(make_trace(extra=others))
    assert {foreign[name] for name in ("latency_low_ms", "samples", "seed", "evaluator", "flops")} == {None}


@pytest.mark.parametrize(
    ("record", "is_confirmed"),
    [
        ({"bound": "chain"}, True),
        ({"bound": "batch", "flags": ["unconfirmed"]}, False),
        ({"bound": "none", "flags": ["unconfirmed"]}, None),
    ],
    ids=["settled", "not settled", "on a CPU"],
)
def test_a_row_has_the_bound_of_a_latency_and_whether_it_confirms_it(record, is_confirmed):
    (row,) = rows_of(on(record=FULL | record))
    assert (row["is_confirmed"], row["bound"], row["confirmed"]) == (is_confirmed, record["bound"], True)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_hostile_texts_come_back_as_they_were(small, form):
    text = exported(small, form)
    rows = list(csv.DictReader(text)) if form == "csv" else [json.loads(line) for line in text.read().split("\n")[:-1]]
    assert rows[1]["log"] == HOSTILE


def test_frames_parquet_and_csv_have_the_same_dtypes_and_values(small, tmp_path):
    pandas = pytest.importorskip("pandas", reason="the extra `export` brings pandas")
    dtypes = {name: DTYPES_OF_FRAMES[kind] for name, kind in COLUMNS.items()}
    small.traces["double"].append(on("w3", "NA"))
    made = small.to_dataframe()
    assert {name: str(dtype) for name, dtype in made.dtypes.items()} == dtypes
    assert (made["timestamp"].dt.year.tolist(), made["speedup"].mean()) == ([2025] * 4, 6.0)
    assert TraceSet().to_dataframe().empty
    asked = {name: dtype for name, dtype in dtypes.items() if name != "timestamp"}
    read = pandas.read_csv(exported(small, "csv"), keep_default_na=False, na_values=[""], dtype=asked)
    given = made.replace("", None)  # CSV does not distinguish an empty text from a missing value
    assert all(read[name].equals(given[name]) for name in asked)
    pytest.importorskip("pyarrow", reason="the extra `export` brings pyarrow")
    target = tmp_path / "out.parquet"
    assert main(["report", "export", str(target), "--local", str(tmp_path)]) == 0
    table = pandas.read_parquet(target)
    assert (list(table["log"])[1], str(table["samples"].dtype)) == (HOSTILE, "Int64")
    assert str(table["timestamp"].dtype) == dtypes["timestamp"]


def test_without_pandas_the_error_names_the_extra():
    with pytest.raises(ConfigError, match=r"pip install -e '.\[export\]'"):
        import_export_library("no_such_library")


def test_a_folder_gets_a_file_and_stdout_takes_no_parquet(small, tmp_path):
    export = ["report", "export", "--local", str(tmp_path)]
    assert main([*export, str(tmp_path), "--format", "jsonl"]) == 0
    assert len((tmp_path / "traces.jsonl").read_text().splitlines()) == len(small.traces["double"])
    assert main([*export, "-", "--format", "parquet"]) == 2


def test_the_document_lists_the_columns_of_the_code():
    page = (CHECKOUT / "docs" / "export.md").read_text()
    for name, kind in COLUMNS.items():
        assert f"| `{name}` | {kind} | `{DTYPES_OF_FRAMES[kind]}` | " in page
