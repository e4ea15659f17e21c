"""The report commands on a set with traces."""

import json

import pytest

from flashinfer_bench.cli.main import cli as main
from tests.cli.fake_engine import write_small_set
from tests.kit import make_trace, make_workload


def on(uuid, solution, **parts):
    return make_trace(workload=make_workload(uuid), solution=solution, **parts)


LATE = on("w1", "other", status="TIMEOUT", log="still running")
TRACES = [*(on(uuid, "double_python", speedup=2.0) for uuid in ("w0", "w1")), on("w0", "other", speedup=8.0), LATE]
UNKNOWN = (
    "error: --solutions: the trace set has no solution 'othr'; did you mean 'other'?\n"
    "error: --authors: the trace set has no author 'alise'; did you mean 'alice'?\n"
)
SUPERSEDED = "note: there is no job whose latest verdict is PASSED; "


@pytest.fixture
def report(tmp_path, capsys):
    def start(line, traces=TRACES):
        root = tmp_path / f"set{len(traces)}"
        if not root.exists():
            write_small_set(root, workloads=3, traces=traces)
        return main(["report", *line.split(), "--local", str(root)]), *capsys.readouterr()

    return start


@pytest.mark.parametrize(
    ("line", "solutions"),
    [
        ("summary --solutions other", ["other"]),
        ("summary --authors alice --op-types test", ["double_python", "other"]),
        ("best", ["other", "double_python"]),
        ("best --workloads w1", ["double_python"]),
        ("best --workloads n=8", ["other", "double_python"]),
        ("best --by definition", ["double_python"]),
    ],
)
def test_rows_are_what_was_asked_for(report, line, solutions):
    assert [row["solution"] for row in json.loads(report(f"{line} --json")[1])["rows"]] == solutions


SLOW = [*TRACES, on("w2", "slow", latency_ms=9.0, speedup=0.1)]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("summary --sort latency", ["double_python", "other", "slow"]),
        ("summary --sort Speed-up", ["other", "double_python", "slow"]),
        ("summary --sort solution --top 2", ["double_python", "other"]),
        ("best --workloads w1 w2 --sort speedup", ["double_python", "slow"]),
        ("best --by definition --sort latency", ["double_python"]),
        ("history --definition double --sort latency --top 1", ["double_python"]),
    ],
)
def test_a_table_is_sorted_and_cut_and_its_json_too(report, line, shown):
    assert [row["solution"] for row in json.loads(report(f"{line} --json", SLOW)[1])["rows"]] == shown
    table = report(f"{line} --columns solution", SLOW)[1].split("──\n")[1].split("\n\n")[0]
    assert table.split() == shown


ENDING = "-cc60-59c5-a763-d17742b2b07a"
SIZES = {f"0000000{index}{ENDING}": {"n": n, "m": m} for index, (n, m) in enumerate([(1, 2), (2, 2), (2, 3)])}
GRID = [
    make_trace(workload=make_workload(uuid, axes=axes), solution=name, latency_ms=time, **parts)
    for uuid, axes in SIZES.items()
    for name, time, parts in (("other", 2.0, {}), ("slow", 4.0, {"status": "TIMEOUT"} if uuid[7] == "1" else {}))
]


def test_a_table_has_the_times_by_workload_named_by_the_axes_that_differ(report, monkeypatch):
    code, out, _ = report("table double", GRID)
    head, _, *lines = [line.split() for line in out.split("\n\n")[0].splitlines()]
    assert (code, head) == (0, ["Workload", "other", "slow"])
    assert lines[:2] == [["n=1", "m=2", "2.00", "ms†<", "4.00", "ms†"], ["n=2", "m=2", "2.00", "ms†<", "TIMEOUT"]]
    rows = json.loads(report("table double --json", GRID)[1])["rows"]
    keys = ("solution", "workload", "axes", "status", "is_best")
    assert [rows[0][key] for key in keys] == ["other", f"00000000{ENDING}", {"n": 1, "m": 2}, "PASSED", True]
    assert "\nn=2 m=3 00000002 " in report("table double --uuids", GRID)[1]
    assert "TIMEOUT on 1 of 3 workloads (n=2 m=2): " in report("summary", GRID)[1]
    assert report("table double --solutions other", GRID)[1].startswith("Workload")
    monkeypatch.setenv("COLUMNS", "40")
    narrow = report("table double", [*GRID, on("w0", "a" * 40)])[1].split("\n\n< ")[0]
    assert ("\n\nWorkload" in narrow, max(map(len, narrow.splitlines())) <= 40) == (True, True), narrow
    assert report("table duoble", GRID)[0] == 2


def test_an_author_without_a_time_is_listed(report):
    code, out, err = report("summary --by author", [LATE])
    assert (code, "\nalice " in out, err) == (0, True, "")


@pytest.mark.parametrize(
    "line",
    [
        "table double",
        "summary --by author",
        "best --json",
        "best --by op_type",
        "best --by definition",
        "visualize --json",
    ],
)
def test_every_table_names_its_columns_for_a_wrong_one(report, line):
    for flag in ("--sort", "--columns"):
        code, out, err = report(f"{line} {flag} tyme")
        assert (code, out, err.startswith(f"error: {flag}: the table has no column 'tyme'; it has ")) == (2, "", True)


@pytest.mark.parametrize(
    ("line", "traces", "code", "said"),
    [
        ("summary --solutions othr --authors alise", TRACES, 2, UNKNOWN),
        ("best --workloads w9", TRACES, 2, "error: --workloads: the trace set has no workload with a trace 'w9'"),
        ("summary", [], 0, "no traces to report"),
        ("best", [], 0, "no traces to report"),
        ("best", [on("w1", "other"), LATE], 0, SUPERSEDED),
        ("best --by author latency", TRACES, 2, "no other word goes with it"),
        ("best --top 0", TRACES, 2, "error: --top: must be at least 1, not 0"),
        ("summary --by hardware --baseline-author a", TRACES, 2, "needs --by solution or --by author"),
        ("history --definition double --solutions othr", TRACES, 2, "did you mean 'other'?"),
    ],
)
def test_what_there_is_nothing_of_is_said(report, line, traces, code, said):
    found, out, err = report(line, traces)
    assert (found, out, said in err) == (code, "", True), err
