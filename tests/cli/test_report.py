"""The report commands on a set with traces."""

import json

import pytest

from flashinfer_bench.cli.main import cli as main
from tests.cli.fake_engine import write_small_set
from tests.kit import make_trace, make_workload


def on(uuid, solution, **parts):
    return make_trace(workload=make_workload(uuid), solution=solution, **parts)


TRACES = [
    on("w0", "double_python", speedup=2.0),
    on("w1", "double_python", speedup=2.0),
    on("w0", "other", speedup=8.0),
    on("w1", "other", status="TIMEOUT", log="still running"),
]


@pytest.fixture
def report(tmp_path, capsys):
    root = write_small_set(tmp_path, workloads=3, traces=TRACES)

    def start(line):
        assert main(["report", *line.split(), "--local", str(root)]) == 0
        return capsys.readouterr().out

    return start


def test_visualize_has_the_counts_and_both_tables(report):
    shown, summary = report("visualize"), report("summary")
    assert shown.startswith("4 verdicts: 3 PASSED, 1 TIMEOUT\n")
    assert summary in shown
    assert shown.endswith(report("best"))
    assert ["double", "other", "1/2", "1", "1.00", "ms†", "8.00x"] in [line.split() for line in summary.splitlines()]
    document = json.loads(report("visualize --format json"))
    assert document["counts"] == {"PASSED": 3, "TIMEOUT": 1}
    assert (len(document["rows"]), len(document["best"])) == (2, 2)


@pytest.mark.parametrize(
    ("line", "solutions"),
    [
        ("summary --solutions other", ["other"]),
        ("summary --authors alice --op-types test", ["double_python", "other"]),
        ("best", ["other", "double_python"]),
        ("best --workloads w1", ["double_python"]),
        ("best --by definition", ["double_python"]),
    ],
)
def test_rows_are_what_was_asked_for(report, line, solutions):
    assert [row["solution"] for row in json.loads(report(f"{line} --format json"))["rows"]] == solutions


@pytest.mark.parametrize("command", ["summary", "best"])
@pytest.mark.parametrize(
    ("traces", "flags", "code", "said"),
    [
        (
            TRACES,
            "--solutions othr --authors alise",
            2,
            "error: --solutions: the trace set has no solution 'othr'; did you mean 'other'?\n"
            "error: --authors: the trace set has no author 'alise'; did you mean 'alice'?\n",
        ),
        ([], "", 0, "no traces to report"),
    ],
)
def test_what_there_is_nothing_of_is_said(tmp_path, capsys, command, traces, flags, code, said):
    root = str(write_small_set(tmp_path, traces=traces))
    assert main(["report", command, "--local", root, *flags.split()]) == code
    out, err = capsys.readouterr()
    assert (out, said in err) == ("", True)


def test_a_pass_that_a_later_verdict_supersedes_is_not_denied(tmp_path, capsys):
    later = [on("w0", "other"), on("w0", "other", status="TIMEOUT", log="still running")]
    assert main(["report", "best", "--local", str(write_small_set(tmp_path, traces=later))]) == 0
    assert capsys.readouterr().err.startswith("note: there is no job whose latest verdict is PASSED; ")
