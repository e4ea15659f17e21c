"""Files for trackers, each checked against the schema that its reader documents."""

import json
import math

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.report.trackers import TRACKERS
from tests.cli.fake_engine import write_small_set
from tests.report.made import on

NUMBER, TEXT = (int, float), str
PYTORCH = {
    "benchmark": {"name!": TEXT, "mode": TEXT, "dtype": TEXT, "extra_info": {TEXT: TEXT}},
    "model": {"name!": TEXT, "type": TEXT, "backend": TEXT, "origins": [TEXT], "extra_info": {TEXT: TEXT}},
    "metric!": {"name!": TEXT, "benchmark_values!": [NUMBER], "target_value": NUMBER, "extra_info": {TEXT: TEXT}},
    "inputs": {TEXT: {"dtype": TEXT, "extra_info": {TEXT: TEXT}}},
    "runners": [{"name": TEXT, "type": TEXT, "cpu_info": TEXT, "gpu_info": TEXT, "extra_info": {TEXT: TEXT}}],
    "dependencies": {TEXT: {"repo": TEXT, "version": TEXT, "sha": TEXT}},
}
SCHEMAS = {
    "bmf": {TEXT: {TEXT: {"value!": NUMBER, "lower_value": NUMBER, "upper_value": NUMBER}}},
    "github-action-benchmark": [{"name!": TEXT, "unit!": TEXT, "value!": NUMBER, "range": TEXT, "extra": TEXT}],
    "pytorch": [PYTORCH],
}
"""Format → its schema. A key with `!` is required; a type as the key stands for any name."""


def check_schema(value, schema, at="file"):
    """Raise unless a value fits: no unknown key, no missing one, no wrong type, no number that JSON lacks."""
    if isinstance(schema, list):
        assert isinstance(value, list), at
        assert value, at
        for number, one in enumerate(value):
            check_schema(one, schema[0], f"{at}[{number}]")
    elif isinstance(schema, dict):
        assert isinstance(value, dict), at
        assert value, at
        named = {key.rstrip("!"): one for key, one in schema.items() if isinstance(key, str)}
        required = {key[:-1] for key in schema if isinstance(key, str) and key.endswith("!")}
        assert required <= {*value}, (at, [*value])
        assert {*value} <= {*named} or not named, (at, [*value])
        for key, one in value.items():
            check_schema(one, named[key] if named else schema[TEXT], f"{at}.{key}")
    else:
        assert isinstance(value, schema), (at, value)
        assert not isinstance(value, bool), (at, value)
        assert not isinstance(value, float) or math.isfinite(value), (at, value)


def refuse(_):
    raise ValueError


@pytest.fixture
def root(tmp_path):
    """A set with two rows that count, beside a failure, a quick look, a time without meaning, and an old row."""
    record = {"method": "cupti", "cache_state": "cold", "interval95_ms": [0.9, 1.1]}
    traces = [
        on("w0", latency=7.0, timestamp="2024-01-01T00:00:00"),
        on("w0", latency=1.0, speedup=4.0, record=record),
        on("w1", latency=2.0, speedup=0.0, record=record | {"interval95_ms": [0.5, 1e306]}),
        on("w2", status="RUNTIME_ERROR"),
        on("w3", run={"quick": True}),
        on("w4", record={"meaningful": False}),
    ]
    return write_small_set(tmp_path, workloads=5, traces=traces)


@pytest.mark.parametrize("form", TRACKERS)
def test_a_file_fits_its_schema_and_has_only_rows_that_count(form, root, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    assert main(["report", "export", str(out), "--format", form, "--local", str(root)]) == 0
    said = capsys.readouterr().err
    assert "2 rows; 3 left out: " in said
    assert all(f"1 {why}" in said for why in ("RUNTIME_ERROR", "quick", "not meaningful"))
    document = json.loads((out / f"{form}.json").read_text(), parse_constant=refuse)
    check_schema(document, SCHEMAS[form])
    first, second = (f"double/x/w{index}/GPU" for index in range(2))
    if form == "bmf":
        assert document == {
            first: {"latency": {"value": 1e6, "lower_value": 9e5, "upper_value": 1.1e6}, "speedup": {"value": 4.0}},
            second: {"latency": {"value": 2e6}},
        }
    elif form == "pytorch":
        rows = [(one["metric"]["name"], one["metric"]["benchmark_values"]) for one in document]
        assert rows == [("latency_us", [1000.0]), ("speedup", [4.0]), ("latency_us", [2000.0])]
        assert document[0]["benchmark"]["extra_info"]["workload"] == "w0"
    else:
        assert [(one["name"], one["value"], one["unit"]) for one in document] == [
            (first, 1000.0, "us"),
            (second, 2000.0, "us"),
        ]
        assert (document[0]["range"], "range" in document[1]) == ("900.0 to 1100.0", False)


@pytest.mark.parametrize("form", TRACKERS)
def test_without_a_row_that_counts_no_file_is_written(form, tmp_path, capsys):
    root = write_small_set(tmp_path / "set", workloads=1, traces=[on("w0", status="TIMEOUT")])
    target = tmp_path / "out.json"
    assert main(["report", "export", str(target), "--format", form, "--local", str(root)]) == 1
    assert "no verdict passed with a time that counts; 1 left out: 1 TIMEOUT" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize(
    ("form", "document"),
    [
        ("bmf", {"a": {"latency": {"value": None}}}),
        ("bmf", {"a": {"latency": {"value": 1.0, "unit": "ns"}}}),
        ("github-action-benchmark", []),
        ("github-action-benchmark", [{"name": "a", "value": 1.0}]),
        ("pytorch", [{"benchmark": {"name": "a"}}]),
        ("pytorch", [{"metric": {"name": "a", "benchmark_values": [math.nan]}}]),
    ],
)
def test_the_checker_refuses_what_a_tracker_would(form, document):
    with pytest.raises(AssertionError):
        check_schema(document, SCHEMAS[form])
