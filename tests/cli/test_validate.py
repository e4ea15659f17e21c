"""What `validate` finds: by reading a set, and by judging it; which flags choose what is reported."""

import json

import pytest

from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.cli import validate_by_judging
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.errors import ConfigError, DeviceFault
from tests.cli.fake_engine import FakeEngine, write_small_set
from tests.kit.make import make_definition, make_evaluation, make_solution, make_trace, make_workload, write_trace_set


@pytest.fixture
def reported(capsys):
    """Validate a set; returns the exit code, and the report in JSON."""

    def start(root, line=""):
        code = main(["validate", "--dataset", str(root), "--format", "json", *line.split()])
        return code, json.loads(capsys.readouterr().out)

    return start


def found(report):
    return [(issue["check"], issue["severity"]) for issue in report["issues"]]


@pytest.fixture
def odd_set(tmp_path):
    """A set with one thing to find for each check that reads."""
    definition = make_definition(
        reference="def run(x, eps=1e-6):\n    return x * 2\n", constraints=["n >= 16", "k <= 4"], op_type="odd"
    )
    return write_trace_set(
        tmp_path / "odd",
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
        "constraint 'k <= 4' is never checked: no axis and no input has the name k",
    ],
    "workload": ["workload w0 of double: constraint 'n >= 16' does not hold (8 and 16): it is judged nevertheless"],
    "solution": ["there is no function 'run'; did you mean 'rum'?"],
    "trace": [
        "double: 1 trace of solution 'gone', which the set lacks (`validate --prune` removes such traces)",
        "double: 1 trace of workload 'lost', which the set lacks (`validate --prune` removes such traces)",
        "double: 1 trace has other sizes than the workload of the same uuid has now",
        "double: 1 trace has PASSED with a latency that no call has, such as 0 or infinity: double_python",
    ],
}


def test_each_check_warns_of_what_is_its_own(odd_set, reported):
    code, report = reported(odd_set)
    assert (code, report["checks"]) == (0, list(REASONS))
    for check, reasons in REASONS.items():
        issues = [issue for issue in report["issues"] if issue["check"] == check]
        assert all(reason in issue["reason"] for reason, issue in zip(reasons, issues, strict=True))
        assert found(reported(odd_set, f"--checks {check}")[1]) == [(check, "warning")] * len(reasons)
    assert any(issue["file"].endswith("workloads/odd/double.jsonl") for issue in report["issues"])


def test_findings_of_other_definitions_are_left_out(odd_set, reported):
    _, report = reported(odd_set, "--definitions right")
    assert (found(report), report["definitions"], report["traces"]) == ([], 1, 1)
    _, report = reported(odd_set, "--op-types odd --checks trace,layout")
    assert found(report) == [("layout", "warning"), *[("trace", "warning")] * 4]


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("validate ROOT --outputs html", 2, "error: --outputs: unknown 'html'; known: stdout, json, text"),
        ("validate ROOT --outputs stdout,json", 2, "error: --outputs json and text are files: give --output-folder"),
        ("validate ROOT --output-folder ROOT/tolerances.yaml", 2, "error: --output-folder: "),
        ("validate ROOT --definitions broken", 1, "broken.json:1: not JSON"),
        ("run ROOT --definitions broken", 1, "nothing to run: broken cannot be read"),
        ("validate ROOT --definitions double", 0, ""),
        ("validate ROOT --definitions narrow", 1, "no call of the reference's run can work"),
        ("validate-render gone.json", 2, "cannot be read: No such file"),
        *((f"validate-render ROOT/{name}.json", 2, "no report of `validate`") for name in ("list", "empty", "later")),
    ],
)
def test_misuse_and_files_that_cannot_be_read_are_told(tmp_path, capsys, line, code, said):
    narrow = make_definition("narrow", inputs={"x": "float32[n]", "w": "float32[n]"})
    files = {"tolerances.yaml": "", "definitions/test/broken.json": "{", "definitions/test/narrow.json": narrow}
    alike = make_solution("broken", definition="broken")
    files |= {"solutions/me/test/broken/broken.json": alike.to_json()}  # its name tells nothing about the definition
    files |= {"list.json": "[]", "empty.json": "{}", "later.json": '{"version": 2}'}
    root = write_small_set(tmp_path, files=files)
    assert main(line.replace("ROOT", str(root)).split()) == code
    assert said in "".join(capsys.readouterr())


def test_a_report_that_is_shown_again_steers_no_terminal(odd_set, tmp_path, capsys):
    (odd_set / "definitions/broken.json").write_text("{")
    folder = tmp_path / "new" / "folder"
    assert main(["validate", str(odd_set), "--outputs", "json", "--output-folder", str(folder)]) == 1
    assert capsys.readouterr() == ("", f"report: {folder / 'report.json'}\n")
    report = folder / "report.json"
    report.write_text(report.read_text().replace("this set has", "\\u001b[2Jthis set has"))
    assert main(["validate-render", str(report)]) == 1
    assert "\\x1b[2Jthis set has" in capsys.readouterr().out


BLOB = {"a": {"type": "safetensors", "path": "blob/gone.safetensors", "tensor_key": "x"}}
TWO = {"a": "float32[n]", "b": "float32[n]"}
OUT_OF_TIME = {"status": "TIMEOUT", "log": "the call was still running"}


@pytest.mark.parametrize(
    ("kind", "verdict", "severity", "said"),
    [
        ("cpu", "no such axis", "error", "the reference on workload w0: without a verdict: no such axis"),
        ("cpu", OUT_OF_TIME, "warning", "takes longer than 900 s on a CPU"),
        ("cuda", OUT_OF_TIME, "error", "the reference on workload w0: TIMEOUT: the call was still running"),
        ("cpu", DeviceFault("the device is lost"), "error", "given up: the device is lost"),
        ("cpu", ConfigError("tolerances.yaml: wrong"), "error", "not judged: tolerances.yaml: wrong"),
    ],
)
def test_what_becomes_of_a_verdict_of_a_reference(reported, tmp_path, monkeypatch, kind, verdict, severity, said):
    def make(trace_set, config):
        if isinstance(verdict, ConfigError):
            raise verdict
        return FakeEngine(trace_set, config, lambda job: verdict)

    monkeypatch.setattr(FakeEngine, "machine", Machine((Device(kind, 0, "test device", "uuid"),), {"python": None}))
    monkeypatch.setattr(validate_by_judging, "Benchmark", make)
    issue = reported(write_small_set(tmp_path), "--checks baseline")[1]["issues"][0]
    assert (issue["severity"], said in issue["reason"]) == (severity, True)


@pytest.mark.cpu
def test_references_and_the_baselines_solutions_are_judged_by_the_engine_and_no_others(tmp_path, reported):
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
    code, report = reported(root, "--checks baseline,benchmark --disable-gpu")
    assert (code, [job["status"] for job in report["jobs"]]) == (1, ["PASSED", "INCORRECT_NUMERICAL"])
    assert report["jobs"][0]["solution"] == "double__reference"
    left_out, *others = sorted(issue["reason"] for issue in report["issues"])
    assert left_out.startswith("double: not judged: 1 of 2 workloads lack their stored inputs")
    assert "double: solution 'wrong' on workload w0: INCORRECT_NUMERICAL: output 'y'" in others[-1]
    assert not (root / "traces").exists()
