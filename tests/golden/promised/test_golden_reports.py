"""Recorded traces, also of older versions and of the public relative: how they are read, ranked, compared and exported.

Spec: spec/engine.md ("Names that existing scripts use": TraceSet), spec/trace-format.md ("Variants": 8),
spec/compat.md (3: `summary`, `rank_authors`, scores, `backup_traces`, `add_traces`; 4: `report merge`, `visualize`);
docs/report.md, docs/export.md ("Columns"), docs/compare.md ("Recorded traces", "A gate in CI", "What is refused"),
docs/migration.md ("Sets").
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from datetime import datetime

import pytest

from flashinfer_bench import Trace, TraceSet
from tests.golden.face import Face, assert_has, assert_subset, read_traces, write_lines
from tests.golden.recorded import HARDWARE, make_trace, write_recorded

COLUMNS = (
    "definition op_type workload axes solution author language hardware status is_passed is_latest is_quick timestamp "
    "latency_ms latency_low_ms latency_high_ms median_ms q25_ms q75_ms std_ms min_ms max_ms samples trials "
    "reference_latency_ms speedup kernel_ms setup_ms is_meaningful flags method cache_state launch max_absolute_error "
    "max_relative_error flops bytes tflops tb_per_sec roofline_share evaluator solution_digest definition_digest seed "
    "engine_version torch_version triton_version cuda_version driver_version log interval"
)
"""Of docs/export.md, in this order. Those of the clocks (burst, relay, confirmed) are not kept here."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_recorded(tmp_path_factory.mktemp("recorded") / "set").root


@pytest.fixture(scope="module")
def here(root, shared_cache):
    return Face(shared_cache, root.parent)


@pytest.fixture(scope="module")
def report(here, root):
    def report(*words):
        done = here("report", *words, "--local", root, "--format", "json")
        assert done.code == 0, done
        return done.json

    return report


@pytest.fixture
def trace_set(root):
    return TraceSet.from_path(root)


@pytest.fixture
def copied(root, tmp_path):
    return TraceSet.from_path(shutil.copytree(root, tmp_path / "set"))


def keys_of(traces):
    return {(trace.solution, trace.workload.uuid) for trace in traces}


def test_all_forms_of_traces_are_read(trace_set):
    assert [str(issue) for issue in trace_set.issues] == []
    assert {name: len(traces) for name, traces in trace_set.traces.items()} == {"double": 9, "triple": 3}
    early = next(t for t in trace_set.traces["double"] if t.solution == "base" and t.workload.uuid == "w1")
    assert early.evaluation.environment.hardware == HARDWARE
    assert "/logs/base.log" in early.evaluation.log


def test_a_set_has_its_dicts_and_folders(trace_set, root):
    assert trace_set.root == root
    assert set(trace_set.definitions) == set(trace_set.solutions) == set(trace_set.workloads) == {"double", "triple"}
    assert trace_set.definitions["double"].op_type == "scale"
    assert [trace.workload.uuid for trace in trace_set.workloads["double"]] == ["w1", "w2"]
    assert trace_set.get_solution("alice_1").author == "alice"
    assert trace_set.get_solution("nobody") is None
    folders = {"definitions": trace_set.definitions_path, "solutions": trace_set.solutions_path,
               "workloads": trace_set.workloads_path, "traces": trace_set.traces_path, "blob": trace_set.blob_path,
               "blob/workloads": trace_set.blob_workloads_path}  # fmt: skip
    assert folders == {name: root / name for name in folders}
    assert_has(trace_set.to_dict(), "definitions solutions workloads traces")


def test_a_set_is_found_by_the_environment(root, monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_DATASET_PATH", str(root))
    assert set(TraceSet.from_path().definitions) == {"double", "triple"}
    with pytest.raises(Exception, match="nowhere"):
        TraceSet.from_path(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_the_best_trace_is_the_passing_one_with_the_highest_speedup(trace_set):
    best = trace_set.get_best_trace("double")
    assert (best.solution, best.workload.uuid, best.evaluation.performance.speedup_factor) == ("alice_1", "w1", 16.0)
    assert trace_set.get_best_trace(def_name="double", axes={"m": 2}).solution == "alice_2"
    assert trace_set.get_best_trace("triple").solution == "bob_3"
    assert trace_set.get_best_trace("nothing") is None
    assert trace_set.get_best_trace("double", max_abs_error=0.001) is None


def test_passing_traces_are_filtered_by_their_errors(trace_set):
    assert len(keys_of(trace_set.filter_traces("double"))) == 7
    assert ("bob_1", "w2") not in keys_of(trace_set.filter_traces("double"))
    assert trace_set.filter_traces("double", atol=0.001) == []


def test_a_summary_counts_and_ranks(trace_set):
    summary = trace_set.summary()
    assert (summary.total, summary.passed, summary.failed) == (10, 9, 1)
    assert summary["total"] == 10
    author, metrics = summary.rankings[0]
    assert (author, metrics.avg_speedup) == ("alice", 3.0)
    assert trace_set.summary(op_type="scale").rankings[0][0] == "alice"


def test_scores_are_baseline_latency_over_latency_and_a_failure_makes_0(trace_set):
    ranking = dict(trace_set.rank_authors())
    assert list(ranking) == ["alice", "bob"]
    alice = ranking["alice"]
    assert (alice.avg_speedup, alice.definitions, alice.workloads, alice.success_rate, alice.win_rate) == (
        3,
        1,
        2,
        1,
        1,
    )
    assert trace_set.get_author_score("alice").avg_speedup == 3
    assert trace_set.get_solution_score("alice_1").avg_speedup == 3
    bob = trace_set.get_solution_score("bob_1")
    assert (bob.avg_speedup, round(bob.success_rate, 3)) == (0, 0.667)
    with pytest.raises(ValueError, match="nobody"):
        trace_set.rank_authors(baseline_author="nobody")


def test_added_traces_are_on_disk_and_strangers_are_refused(copied):
    before = len(read_traces(copied.root))
    copied.add_traces([Trace.model_validate(make_trace("double", "w1", "bob_1", timestamp="2026-01-01T00:00:00"))])
    assert len(read_traces(copied.root)) == before + 1
    for change in ({"solution": "stranger"}, {"definition": "stranger"}):
        stranger = Trace.model_validate(make_trace("double", "w1", "bob_1")).model_copy(update=change)
        with pytest.raises(ValueError, match="stranger"):
            copied.add_traces([stranger])
    assert len(read_traces(copied.root)) == before + 1


def test_traces_are_moved_aside(copied):
    copied.backup_traces()
    (kept,) = copied.root.glob("traces_bak_*")
    datetime.strptime(kept.name, "traces_bak_%Y%m%d_%H%M%S")  # noqa: DTZ007
    assert read_traces(copied.root) == []
    assert TraceSet.from_path(copied.root).get_best_trace("double") is None


def test_workloads_and_their_blobs_are_added(copied):
    import torch

    path = copied.add_workload_blob_tensor("double", "w3", {"x": torch.ones(3, 8)})
    assert copied.get_workload_blob_tensor(path)["x"].shape == (3, 8)
    source = {"type": "safetensors", "path": path, "tensor_key": "x"}
    line = {"definition": "double", "workload": {"uuid": "w3", "axes": {"m": 3}, "inputs": {"x": source}}}
    copied.add_workload_traces([Trace.model_validate(line)])
    assert [t.workload.uuid for t in TraceSet.from_path(copied.root).workloads["double"]] == ["w1", "w2", "w3"]


def test_report_best_has_the_fastest_of_each_workload(report):
    rows = {(row["definition"], row["workload"]): row for row in report("best")["rows"]}
    for key, solution, latency, speedup in [
        (("double", "w1"), "alice_1", 1.0, 16.0),
        (("double", "w2"), "alice_2", 2.0, 8.0),
        (("triple", "v1"), "bob_3", 1.0, 16.0),
    ]:
        assert_subset(
            {"solution": solution, "latency_ms": latency, "speedup": speedup, "hardware": HARDWARE}, rows[key]
        )
        assert rows[key]["ties"] == []
    assert len(rows) == 3
    by_definition = {row["definition"]: row for row in report("best", "--by", "definition")["rows"]}
    double = by_definition["double"]
    assert {double["solution"], *(tie["solution"] for tie in double["ties"])} == {"alice_1", "alice_2"}
    authors = {row["group"]: (row["workloads"], row["of"]) for row in report("best", "--by", "author")["rows"]}
    assert authors == {"alice": (2, 3), "bob": (1, 3)}


def test_report_summary_has_a_row_for_each_solution(report):
    rows = {row["solution"]: row for row in report("summary")["rows"]}
    assert set(rows) == {"base", "base_3", "alice_1", "alice_2", "bob_1", "bob_3"}
    assert_subset(
        {"passed": 2, "judged": 2, "pending": 0, "failures": [], "speedup": pytest.approx(8)}, rows["alice_2"]
    )
    assert_subset({"passed": 1, "judged": 2}, rows["bob_1"])
    assert_subset([{"status": "INCORRECT_NUMERICAL", "workloads": ["w2"]}], rows["bob_1"]["failures"])


def test_report_summary_by_author_ranks_by_share_of_the_fastest(report):
    rows = report("summary", "--by", "author")["rows"]
    assert [row["author"] for row in rows] == ["bob", "alice", "baseline"]
    found = {row["author"]: row for row in rows}
    assert found["bob"]["fastest_share"] == pytest.approx((1 / 8 / 2 + 1) / 2)
    assert found["alice"]["fastest_share"] == pytest.approx((1 + 0.5) / 2 / 2)
    assert found["alice"]["score"] == 10.0
    assert found["alice"]["win_rate"] == 1.0
    against = report("summary", "--by", "author", "--baseline-author", "baseline")["rows"]
    assert {row["author"]: row["score"] for row in against} == {"bob": 1.5, "alice": 3.0}
    groups = {row["group"]: (row["passed"], row["judged"]) for row in report("summary", "--by", "op_type")["rows"]}
    assert groups == {"other": (2, 2), "scale": (7, 8)}


def test_report_history_has_a_row_for_each_state_of_a_solution(report):
    rows = report("history", "--definition", "double")["rows"]
    assert {row["solution"] for row in rows} == {"alice_1", "alice_2", "base", "bob_1"}
    assert_has(rows[0], "solution hardware verdicts passed latency_ms changed decision")


def test_tables_are_the_default_and_both_come_together(here, root):
    for words in (["best"], ["summary"], ["visualize"], ["history", "--definition", "double"]):
        done = here("report", *words, "--local", root)
        assert (done.code, "alice_2" in done.out) == (0, True)
    assert "PASSED" in here("report", "visualize", root).out


def test_report_html_writes_pages_and_refuses_a_folder_with_other_things(here, root, tmp_path):
    pytest.importorskip("jinja2")
    assert here("report", "html", tmp_path / "pages", "--local", root).code == 0
    assert (tmp_path / "pages" / "index.html").is_file()
    assert here("report", "html", tmp_path / "pages", "--local", root).code == 0  # it wrote this folder
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("")
    assert here("report", "html", tmp_path / "mine", "--local", root).code == 2


def test_an_export_as_csv_has_the_documented_columns_in_order(here, root, tmp_path):
    done = here("report", "export", tmp_path / "out.csv", "--local", root)
    assert done.code == 0, done
    header, *rows = csv.reader(io.StringIO((tmp_path / "out.csv").read_text()))
    assert [name for name in header if name in COLUMNS.split()] == COLUMNS.split()
    assert len(rows) == 12
    again = here("report", "export", "-", "--format", "csv", "--local", root)
    assert list(csv.reader(io.StringIO(again.out))) == [header, *rows]
    found = [dict(zip(header, row, strict=True)) for row in rows]
    older = next(row for row in found if row["solution"] == "alice_1" and row["workload"] == "w2")
    expected = {
        "op_type": "scale", "axes": '{"m": 2}', "author": "alice", "language": "python", "hardware": HARDWARE,
        "status": "PASSED", "is_passed": "true", "is_latest": "true", "is_quick": "false", "latency_ms": "4.0",
        "latency_low_ms": "3.96", "latency_high_ms": "4.04", "samples": "150", "trials": "3", "speedup": "4.0",
        "reference_latency_ms": "16.0", "method": "cupti", "cache_state": "cold", "launch": "stream", "seed": "5",
        "max_absolute_error": "0.002", "max_relative_error": "0.001", "interval": "workers", "kernel_ms": "",
        "torch_version": "2.6.0", "evaluator": "DefaultEvaluator",
    }  # fmt: skip
    assert_subset(expected, older)
    assert older["timestamp"].startswith("2025-06-01T12:00:00")
    latest = [row["is_latest"] for row in found if row["solution"] == "bob_3"]
    assert sorted(latest) == ["false", "true"]


def test_an_export_as_json_lines_has_the_same_rows(here, root, tmp_path):
    done = here("report", "export", tmp_path / "out.jsonl", "--local", root, "--op-types", "scale")
    assert done.code == 0, done
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 9
    for row in rows:
        assert_has(row, COLUMNS)
    wrong = next(row for row in rows if row["status"] == "INCORRECT_NUMERICAL")
    assert (wrong["is_passed"], wrong["latency_ms"], wrong["max_absolute_error"]) == (False, None, 0.002)


def test_a_data_frame_has_the_same_columns(trace_set):
    pandas = pytest.importorskip("pandas")
    frame = trace_set.to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert [name for name in frame.columns if name in COLUMNS.split()] == COLUMNS.split()
    assert int(frame.is_passed.sum()) == 10


def test_diff_tells_verdicts_and_times_that_changed(here, root, tmp_path):
    shutil.copytree(root, tmp_path / "new")
    changed = make_trace("double", "w2", "alice_2", "RUNTIME_ERROR", timestamp="2026-01-01T00:00:00")
    write_lines(tmp_path / "new" / "traces" / "alice" / "scale" / "later.jsonl", [changed])
    done = here("report", "diff", root, tmp_path / "new", "--format", "json")
    assert done.code == 0, done
    (row,) = [row for row in done.json["rows"] if row["old_status"] != row["new_status"]]
    expected = {"definition": "double", "workload": "w2", "solution": "alice_2", "hardware": HARDWARE}
    assert_subset(expected | {"old_status": "PASSED", "new_status": "RUNTIME_ERROR", "old_ms": 2.0}, row)
    assert_has(done.json, "counts rows")
    assert here("report", "diff", root, tmp_path / "new", "--threshold", "2").code == 2  # 2 % or 2?


def test_recorded_traces_are_compared(here, root):
    done = here("compare", "base", "alice_2", "--recorded", "--local", root, "--format", "json")
    assert done.code == 0, done
    expected = [
        {"workload": "w1", "axes": {"m": 1}, "a_ms": 4.0, "b_ms": 2.0, "ratio": 0.5, "decision": "faster"},
        {"workload": "w2", "axes": {"m": 2}, "a_ms": 8.0, "b_ms": 2.0, "ratio": 0.25, "decision": "faster"},
    ]
    assert_subset({"a": "base", "b": "alice_2", "hardware": HARDWARE, "threshold": 0.02, "rows": expected}, done.json)
    assert_subset({"ratio": pytest.approx(0.125**0.5), "decision": "faster"}, done.json["overall"])
    table = here("compare", "base", "alice_2", "--recorded", "--local", root, "--format", "md")
    assert [line.count("|") > 3 for line in table.out.splitlines() if "w1" in line] == [True]
    slower = here("compare", "alice_1", "bob_1", "--recorded", "--local", root, "--fail-if-slower", "3%")
    assert slower.code == 1, slower


def test_sets_are_merged_and_contradictions_refused(here, root, tmp_path):
    shutil.copytree(root, tmp_path / "other")
    done = here("report", "merge", "--local", root, "--local", tmp_path / "other", "--output", tmp_path / "merged")
    assert done.code == 0, done
    merged = TraceSet.from_path(tmp_path / "merged")
    assert {name: len(traces) for name, traces in merged.traces.items()} == {"double": 9, "triple": 3}
    path = tmp_path / "other" / "definitions" / "scale" / "double.json"
    path.write_text(path.read_text().replace("x * 2", "x * 3"))
    refused = here("report", "merge", "--local", root, "--local", tmp_path / "other", "--output", tmp_path / "none")
    assert (refused.code, (tmp_path / "none").exists()) == (2, False)
    assert "double" in refused.text
    full = here("report", "merge", "--local", root, "--output", tmp_path / "merged")
    assert full.code == 2  # the folder is not empty
