"""What `validate` finds: by reading a set, and by judging it; which flags choose what is reported."""

import json

import pytest

from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.sets import judging
from flashinfer_bench.errors import ConfigError, DeviceFault
from tests.cli.fake_engine import FakeEngine, write_small_set
from tests.kit.make import make_definition, make_evaluation, make_solution, make_trace, make_workload, write_trace_set


@pytest.fixture
def told(capsys):
    """Validate a set; returns the exit code, and the report in JSON."""

    def start(root, *flags):
        code = main(["validate", "--dataset", str(root), "--format", "json", *flags])
        return code, json.loads(capsys.readouterr().out)

    return start


def found(report):
    return [(issue["check"], issue["severity"]) for issue in report["issues"]]


@pytest.fixture
def odd_set(tmp_path):
    """A set with one thing to find for each check that reads."""
    definition = make_definition(
        reference="def run(x, eps=1e-6):\n    return x * 2\n", constraints=["n >= 16"], op_type="odd"
    )
    return write_trace_set(
        tmp_path,
        {
            "solutions/bob/odd/double/misplaced.json": make_solution("misplaced"),
            "tolerances.yaml": "unknown:\n  rtol: 0.1\n",
        },
        definitions=[definition, make_definition("right")],
        solutions=[make_solution(source="def rum(x):\n    return x\n"), make_solution("fine", definition="right")],
        workloads=[make_trace(solution=None), make_trace(definition="right", solution=None)],
        traces=[
            make_trace(solution="gone", workload=make_workload("w0", axes={"n": 4})),
            make_trace(workload=make_workload("lost"), evaluation=make_evaluation(latency_ms=0.0)),
            make_trace(definition="right", solution="fine"),
        ],
    )


REASONS = {
    "layout": ["the path says 'bob', the file 'alice'"],
    "definition": [
        "this set has no such definition",
        "parameter 'eps' of the reference's run is no input of double",
    ],
    "workload": ["workload w0 of double: constraint 'n >= 16' does not hold (8 and 16): it is judged nevertheless"],
    "solution": ["there is no function 'run'; did you mean 'rum'?"],
    "trace": [
        "double: 1 trace of solution 'gone', not there for this definition",
        "double: 1 trace of workload 'lost', not there for this definition",
        "double: 1 trace has other sizes than the workload of the same uuid has now",
        "double: 1 trace has PASSED with a latency that no call has, such as 0 or infinity: double_python",
    ],
}


def test_each_check_warns_of_what_is_its_own(odd_set, told):
    code, report = told(odd_set)
    assert (code, report["checks"]) == (0, list(REASONS))
    for check, reasons in REASONS.items():
        issues = [issue for issue in report["issues"] if issue["check"] == check]
        assert len(issues) == len(reasons)
        assert all(reason in issue["reason"] for reason, issue in zip(reasons, issues, strict=True))
        assert found(told(odd_set, "--checks", check)[1]) == [(check, "warning")] * len(reasons)
    files = {issue["check"]: issue["file"] for issue in report["issues"]}
    assert files["workload"].endswith("workloads/odd/double.jsonl")


def test_a_reference_with_fewer_parameters_than_inputs_is_an_error(tmp_path, told):
    inputs = {"x": "float32[n]", "w": "float32[n]"}
    code, report = told(write_trace_set(tmp_path, definitions=[make_definition(inputs=inputs)]))
    assert (code, found(report)) == (1, [("definition", "error")])
    assert "no call of the reference's run can work" in report["issues"][0]["reason"]


def test_findings_of_other_definitions_are_left_out(odd_set, told):
    _, report = told(odd_set, "--definitions", "right")
    assert (found(report), report["definitions"], report["traces"]) == ([], 1, 1)
    _, report = told(odd_set, "--op-types", "odd", "--checks", "trace,layout")
    assert found(report) == [("layout", "warning"), *[("trace", "warning")] * 4]


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("validate ROOT --outputs html", 2, "error: --outputs: unknown 'html'; known: stdout, json, text"),
        ("validate ROOT --outputs stdout,json", 2, "error: --outputs json and text are files: give --output-folder"),
        ("validate ROOT --output-folder ROOT/tolerances.yaml", 2, "error: --output-folder: "),
        ("validate ROOT --definitions broken", 1, "broken.json:1: not JSON"),
        ("validate ROOT --definitions double", 0, ""),
        ("validate-render gone.json", 2, "cannot be read: No such file"),
        ("validate-render ROOT/list.json", 2, "no report of `validate`"),
        ("validate-render ROOT/empty.json", 2, "missing required field `version`"),
    ],
)
def test_misuse_and_files_that_cannot_be_read_are_told(tmp_path, capsys, line, code, said):
    files = {"tolerances.yaml": "", "list.json": "[]", "empty.json": "{}", "definitions/test/broken.json": "{"}
    root = write_small_set(tmp_path, files=files)
    assert main(line.replace("ROOT", str(root)).split()) == code
    assert said in "".join(capsys.readouterr())


def test_coverage_names_what_a_set_lacks(tmp_path, told):
    root = write_trace_set(
        tmp_path,
        definitions=[make_definition(), make_definition("bare")],
        solutions=[make_solution(author="baseline")],
        workloads=[make_trace(solution=None, workload=make_workload(uuid)) for uuid in ("a", "b", "c")],
        traces=[make_trace(workload=make_workload("a")), make_trace(workload=make_workload("b"), status="TIMEOUT")],
    )
    assert told(root)[1]["coverage"] == {
        "baseline_author": "baseline",
        "without_workloads": ["bare"],
        "without_baseline": ["bare"],
        "not_passed": {"double": ["b", "c"]},
    }


def test_a_constraint_that_is_never_checked_is_told(tmp_path, capsys):
    root = write_trace_set(tmp_path, definitions=[make_definition(constraints=["k <= 4", "n <= 1 << 20"])])
    assert main(["validate", str(root)]) == 0
    out = capsys.readouterr().out
    assert out.count("constraints: ") == 1
    assert "constraint 'k <= 4' is never checked: no axis and no input has the name k" in out
    assert "baseline" not in out  # nobody has written one, so none is missing


def test_a_report_is_written_and_shown_again_and_steers_no_terminal(odd_set, tmp_path, capsys):
    folder = tmp_path / "new" / "folder"
    assert main(["validate", "--dataset", str(odd_set), "--output-folder", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert (folder / "report.txt").read_text() == out
    assert err.splitlines() == [f"report: {folder / 'report.json'}", f"report: {folder / 'report.txt'}"]
    (odd_set / "definitions/broken.json").write_text("{")
    outputs = ["--outputs", "json", "--output-folder", str(tmp_path / "json")]
    assert main(["validate", "--dataset", str(odd_set), *outputs]) == 1
    assert capsys.readouterr().out == ""
    (broken,) = (tmp_path / "json").iterdir()
    assert main(["validate-render", str(broken)]) == 1
    assert "error: " in capsys.readouterr().out
    file = folder / "report.json"
    assert main(["validate-render", str(file)]) == 0
    assert capsys.readouterr().out == out
    file.write_text(file.read_text().replace("this set has", "\\u001b[2Jthis set has"))
    assert main(["validate-render", str(file)]) == 0
    assert "\\x1b[2Jthis set has" in capsys.readouterr().out


BLOB = {"a": {"type": "safetensors", "path": "blob/gone.safetensors", "tensor_key": "x"}}
TWO = {"a": "float32[n]", "b": "float32[n]"}


@pytest.fixture
def judge(tmp_path, monkeypatch, capsys):
    """Judge a set by a fake engine; returns the report, what was said, and the engines."""

    def start(*flags, verdict_of=lambda job: {}, error=None):
        made = []

        def make(trace_set, config):
            if error is not None:
                raise error
            made.append(FakeEngine(trace_set, config, verdict_of))
            return made[-1]

        monkeypatch.setattr(judging, "Benchmark", make)
        main(["validate", "--local", str(tmp_path), "--format", "json", "--checks", "baseline", *flags])
        out, err = capsys.readouterr()
        return json.loads(out), err, made

    return start


OUT_OF_TIME = {"status": "TIMEOUT", "log": "the call was still running"}


@pytest.mark.parametrize(
    ("kind", "verdict", "severity", "said"),
    [
        ("cpu", "no such axis", "error", "the reference on workload w0: NO VERDICT: no such axis"),
        ("cpu", OUT_OF_TIME, "warning", "takes longer than 900 s on a CPU"),
        ("cuda", OUT_OF_TIME, "error", "the reference on workload w0: TIMEOUT: the call was still running"),
        ("cpu", DeviceFault("the device is lost"), "error", "given up: the device is lost"),
    ],
)
def test_what_becomes_of_a_verdict_of_a_reference(judge, tmp_path, monkeypatch, kind, verdict, severity, said):
    monkeypatch.setattr(FakeEngine, "machine", Machine((Device(kind, 0, "test device", "uuid"),), {"python": None}))
    write_small_set(tmp_path)
    report, _, made = judge(verdict_of=lambda job: verdict)
    issue = report["issues"][0]
    assert (issue["severity"], said in issue["reason"]) == (severity, True)
    assert made[0].config.timeout_seconds == (900 if kind == "cpu" else 300)
    if isinstance(verdict, DeviceFault):
        assert "2 of 2 jobs not judged" in report["issues"][1]["reason"]


def test_a_check_ends_after_its_time_or_by_wrong_tolerances_and_says_so(judge, tmp_path, monkeypatch):
    write_small_set(tmp_path)
    wrong = "tolerances.yaml: double.atol (line 3): wrong"
    assert judge(error=ConfigError(wrong))[0]["issues"][0]["reason"] == f"not judged: {wrong}"
    monkeypatch.setattr(judging, "CHECK_LIMIT_S", -1.0)
    report, _, made = judge()
    assert "2 of 2 jobs not judged; a check ends after" in report["issues"][0]["reason"]
    assert (report["issues"][0]["severity"], made[0].is_ended) == ("warning", True)


@pytest.mark.cpu
def test_references_and_the_baselines_solutions_are_judged_by_the_engine_and_no_others(tmp_path, told):
    root = write_trace_set(
        tmp_path,
        definitions=[make_definition(inputs=TWO, reference="def run(b, *, a):\n    return a - b\n")],
        solutions=[
            make_solution("wrong", author="baseline", source="def run(a, b):\n    return b - a\n"),
            make_solution("of_alice"),
        ],
        workloads=[
            make_trace(solution=None, workload=workload)
            for workload in (make_workload(inputs={}), make_workload("gone", inputs=BLOB))
        ],
    )
    code, report = told(root, "--checks", "baseline,benchmark", "--disable-gpu")
    assert (code, [job["status"] for job in report["jobs"]]) == (1, ["PASSED", "INCORRECT_NUMERICAL"])
    assert report["jobs"][0]["solution"] == "double__reference"
    left_out, *others = sorted(issue["reason"] for issue in report["issues"])
    assert left_out.startswith("double: not judged: 1 of 2 workloads lack their stored inputs")
    assert "double: solution 'wrong' on workload w0: INCORRECT_NUMERICAL: output 'y'" in others[-1]
    assert not (root / "traces").exists()
