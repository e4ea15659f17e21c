"""Weights of workloads: their files, and the means that use them. The expected numbers are computed by hand."""

import json
import shutil
from math import hypot, log

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.report.intervals import mean_of
from flashinfer_bench.report.ranking import FAST_P, count_winners, group_by, rank_by_author
from flashinfer_bench.report.summary import rank_by_workload
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.report.made import on, summarise

NOTE = "means are weighted by workload weights"
WEIGHTS = "double:\n  n=16: 0.5\n  work_0: 3\n"
TIMES = {"mine": (4.0, 1.0, 2.0), "rival": (2.0, 4.0, 2.5)}
FLOOR = {"floor_ms": 0.5, "peak": "GPU (vendor)"}


def write(root, *, weights=WEIGHTS, **line):
    """Write a set of three workloads, whose weights are 3, 1 and 0.5 by default. The reference takes 8 ms."""
    lines = [make_workload("work_0", weight=9.0), make_workload("work_1", **line), make_workload("w2", axes={"n": 16})]
    traces = [
        on(lines[place].uuid, name, time, roofline=FLOOR) for name in TIMES for place, time in enumerate(TIMES[name])
    ]
    return write_trace_set(
        root,
        {"weights.yaml": weights} if weights else {},
        definitions=[make_definition()],
        solutions=[make_solution("mine", author="alice"), make_solution("rival", author="baseline")],
        workloads=[make_trace(solution=None, workload=one) for one in lines],
        traces=traces,
    )


def test_means_are_as_computed_by_hand(tmp_path):
    trace_set = TraceSet.from_path(write(tmp_path / "set"))
    assert trace_set.issues == []
    traces = list(trace_set.all_traces())
    results = list_results(trace_set, traces)
    expected = {("double", "mine"): {"work_0": 3.0, "work_1": 1.0, "w2": 0.5, "open": 4.5}}
    row = next(row for row in summarise(traces, expected, trace_set) if row.solution == "mine")
    assert (row.latency_ms, row.speedup) == (2.0, pytest.approx(2 ** (7 / 4.5), abs=1e-6))
    assert (row.sol_score, row.weighted) == (pytest.approx((3 * 0.3 + 0.875 + 0.5 / 1.75) / 9, abs=1e-6), True)
    alice, base = sorted(rank_by_author(results), key=lambda row: row.author)
    assert [alice.score, alice.fastest_share, alice.fast_p[FAST_P.index(2.0)]] == pytest.approx(
        [16 / 4.5, (1.5 + 1 + 0.5) / 4.5, 1.5 / 4.5], abs=1e-6
    )
    assert [base.fastest_share, base.sol_score] == pytest.approx([(3 + 0.25 + 0.4) / 4.5, 0.5], abs=1e-6)
    assert group_by(results, "op_type")[0].speedup.value == pytest.approx(2 ** ((7 + 6 + 1 + 0.5 * log(3.2, 2)) / 9))
    winners = count_winners(rank_by_workload(results), "author")
    trace_set.baseline_author = "baseline"
    against = rank_by_author(list_results(trace_set, traces), "baseline")
    assert against[0].win_rate == pytest.approx(1.5 / 4.5, abs=1e-6)
    assert [(row.group, row.workloads, row.weight_share) for row in winners] == [
        ("baseline", 1, pytest.approx(3 / 4.5)),
        ("alice", 2, pytest.approx(1.5 / 4.5)),
    ]
    score = trace_set.get_author_score("alice")
    assert [score.avg_speedup, score.win_rate] == pytest.approx([(1.5 + 4 + 0.625) / 4.5, 1.5 / 4.5], abs=1e-6)
    assert score.weighted
    assert trace_set.get_best_trace("double").workload.uuid == "work_1"
    mean = mean_of([(2.0, 3.0, 0.01), (8.0, 1.0, 0.02)])
    assert [log(mean.value, 2), log(mean.high / mean.value)] == pytest.approx([1.5, hypot(0.03, 0.02) / 4])


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("report summary", [NOTE]),
        ("report summary --by author", [NOTE]),
        ("report best --by author", [NOTE, "66.7%"]),
        ("report table double --workloads work_0 w2 --columns solution sol-score", [NOTE]),
        ("show double", ["weights: ", "work_0: 3", "w2: 0.5", NOTE]),
        ("show work_0", ["weight: 3"]),
    ],
)
def test_tables_and_rows_say_that_means_are_weighted(line, shown, tmp_path, capsys):
    weighted, plain = write(tmp_path / "set"), write(tmp_path / "plain", weights="double: {work_0: 1}")
    assert main([*line.split(), "--local", str(weighted)]) == 0
    said = capsys.readouterr().out
    assert [text for text in shown if text not in said] == []
    assert main([*line.split(), "--local", str(plain)]) == 0
    assert "weight" not in capsys.readouterr().out
    if line.startswith("report"):
        assert main([*line.split(), "--json", "--local", str(weighted)]) == 0
        [rows] = [part for part in json.loads(capsys.readouterr().out).values() if part and isinstance(part[0], dict)]
        assert all(row["weighted"] for row in rows) or "table" in line


WRONG = {
    "a key twice": ("double: {work_0: 3, work_0: 2}", "error", None, None, "this key stands on line 1 already"),
    "no such digits": ("double:\n  1234: 3", "warning", 2, "double.1234", "no workload has this name"),
    "no number": ("double:\n  work_0: 3\n  work_1: many", "error", 3, "double.work_1", "valid number"),
    "not above 0": ("double:\n  work_0: 0", "error", 2, "double.work_0", "greater than 0"),
    "a list": ("double: [3]", "error", 1, "double", "dictionary"),
    "not YAML": ("double: [", "error", None, None, "line 1: this is not YAML"),
    "no such definition": ("doubel: {work_0: 3}", "warning", 1, "doubel", "did you mean 'double'?"),
    "no such workload": ("double:\n  n=17: 3", "warning", 2, "double.n=17", "did you mean 'n=16'?"),
}


@pytest.mark.parametrize(("text", "severity", "line", "field", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_reported_with_its_line_and_has_no_effect(tmp_path, text, severity, line, field, said):
    trace_set = TraceSet.from_path(write(tmp_path / "set", weights=text))
    [issue] = trace_set.issues
    assert (issue.severity, issue.file.name, issue.line, issue.field) == (severity, "weights.yaml", line, field)
    assert said in issue.reason
    assert [trace.workload.weight for trace in trace_set.workloads["double"]] == [9.0, 1.0, 1.0]


def test_a_table_of_chosen_workloads_has_their_mean_score(tmp_path, capsys):
    root = write(tmp_path / "set")
    words = ["report", "table", "double", "--columns", "solution", "sol-score", "--local", str(root), "--workloads"]
    for names, score in {"work_0": 0.3, "work_0 w2": (3 * 0.3 + 0.5 / 1.75) / 3.5}.items():
        assert main([*words, *names.split()]) == 0
        rows = map(str.split, capsys.readouterr().out.splitlines())
        assert ["mine", f"{score:.4g}"] in rows


@pytest.mark.parametrize("uuid", ["48201933", "0x12", "1234"])
def test_a_uuid_of_digits_is_a_name(uuid, tmp_path):
    line = make_trace(solution=None, workload=make_workload(uuid))
    text = f"double: {{{uuid}: 2.5}}\n"
    root = write_trace_set(tmp_path, {"weights.yaml": text}, definitions=[make_definition()], workloads=[line])
    trace_set = TraceSet.from_path(root)
    assert (trace_set.issues, trace_set.workloads["double"][0].workload.weight) == ([], 2.5)


@pytest.mark.parametrize(
    ("keys", "weight", "fields"),
    [
        ({"weight": 2}, 2.0, []),
        ({"count": 12}, 12.0, ["workload.count"]),
        ({"calls": 0}, 1.0, [None]),
        ({"weight": -1}, 1.0, ["workload.weight"]),
    ],
    ids=str,
)
def test_a_line_has_a_weight_or_a_number_of_calls_which_convert_writes(tmp_path, keys, weight, fields):
    root = write(tmp_path / "set", weights="")
    file = root / "workloads/test/double.jsonl"
    lines = file.read_text().splitlines()
    line = json.loads(lines[1])
    line["workload"] |= keys
    file.write_text("\n".join([lines[0], json.dumps(line), lines[2]]) + "\n")
    trace_set = TraceSet.from_path(root)
    assert [(issue.line, issue.field) for issue in trace_set.issues] == [(2, field) for field in fields]
    assert trace_set.workloads["double"][1].workload.weight == weight
    assert trace_set.workloads["double"][1].workload.digest() == make_workload().digest()
    (root / "weights.yaml").write_text("double: {w2: 7}\n")
    assert main(["convert", str(root), "--output", str(tmp_path / "out")]) == 0
    shutil.rmtree(root)
    kept = TraceSet.from_path(tmp_path / "out").workloads["double"]
    assert [trace.workload.weight for trace in kept] == [9.0, weight, 7.0]


def test_new_workload_writes_its_weight(tmp_path, capsys):
    root = write(tmp_path / "set", weights="")
    words = ["new", "workload", "double", "--local", str(root), "--axis", "n=4"]
    assert main([*words, "--weight", "0"]) == 2
    assert "--weight 0: " in capsys.readouterr().err
    assert main([*words, "--weight", "2.5"]) == 0
    assert TraceSet.from_path(root).workloads["double"][-1].workload.weight == 2.5


def test_a_weight_does_not_change_the_uuid_of_a_workload_without_one(tmp_path):
    root = write(tmp_path / "set", weights="")
    file = root / "workloads/test/double.jsonl"
    line = json.loads(file.read_text().splitlines()[0])
    del line["workload"]["uuid"]
    uuids = set()
    for keys in ({}, {"weight": 2}, {"count": 12}, {"count": 13}):
        file.write_text(json.dumps({**line, "workload": {**line["workload"], **keys}}) + "\n")
        [trace] = TraceSet.from_path(root).workloads["double"]
        uuids.add(trace.workload.uuid)
    assert len(uuids) == 1
