"""`show`: definitions, solutions and workloads of a set, by name."""

import io
import json
import sys

import pytest

from flashinfer_bench.cli.main import cli as main
from tests.cli.fake_engine import write_small_set
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

WRONG = make_trace(workload=make_workload("w1"), solution="other", status="TIMEOUT", log="still running")
RIGHT = [make_trace(workload=make_workload(uuid), latency_ms=3.0, speedup=0.5) for uuid in ("w0", "w1")]


class Terminal(io.StringIO):
    def isatty(self):
        return True


SOURCE = "def run(x):\n    return x * 2\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    files = {"tolerances.yaml": "double: {rtol: 0.25}\n"}
    return str(write_small_set(tmp_path_factory.mktemp("show") / "set", traces=[*RIGHT, WRONG], files=files))


@pytest.fixture
def show(root, capsys):
    return lambda *words: (main(["show", *words, "--local", root]), *capsys.readouterr())


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "double",
            [
                "double: definition of op type test",
                "n var 8",
                "x input [n] float32",
                "y output [n] float32",
                "workloads: w0, w1",
                "double_python 3.00 ms†< 3.00 ms†<",
                "double double_python 2/2 3.00 ms† 0.50x",
                "TIMEOUT on workload w1: still running",
                "next: flashinfer-bench report table double --local SET",
            ],
        ),
        (
            "other",
            [
                "other: solution of double",
                "author alice",
                "calling style detected",
                "w1 TIMEOUT \N{EN DASH} \N{EN DASH} still running",
                "next: flashinfer-bench repro other w1 --dump why --local SET",
            ],
        ),
        (
            "w1",
            [
                "w1: workload w1 of double",
                "x input [8] float32 random",
                "double_python PASSED 3.00 ms† 0.50x",
                "next: flashinfer-bench run --workloads w1 --local SET",
            ],
        ),
    ],
)
def test_an_object_is_shown_with_its_verdicts_and_the_next_commands(show, root, name, lines):
    code, out, err = show(name)
    shown = [" ".join(line.split()) for line in out.replace(root, "SET").splitlines()]
    assert (code, err, [line for line in lines if line not in shown]) == (0, "", [])
    if name != "other":
        assert [line for line in shown if line.startswith("rtol 0.25 ") and line.endswith("tolerances.yaml: double")]
    assert (SOURCE in out) == (name != "w1")


@pytest.mark.parametrize(
    ("bounds", "line"),
    [((1e-4, 1e-4), "rtol 0.0001 the workload's tolerance"), ((1e-4, 1e-3), "rtol 0.01 default")],
)
def test_a_definition_has_the_tolerance_that_all_its_workloads_share(tmp_path, capsys, bounds, line):
    workloads = [make_workload(f"w{at}", tolerance={"max_rtol": bound}) for at, bound in enumerate(bounds)]
    lines = [make_trace(solution=None, workload=workload) for workload in workloads]
    root = write_trace_set(tmp_path / "set", definitions=[make_definition()], workloads=lines)
    assert main(["show", "double", "--local", str(root)]) == 0
    assert line in [" ".join(row.split()) for row in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("name", "kind", "key"),
    [("double", "definition", "solutions"), ("other", "solution", "verdicts"), ("w0", "workload", "verdicts")],
)
def test_its_json_has_the_same(show, name, kind, key):
    document = json.loads(show(name, "--json")[1])
    assert (document["kind"], len(document[key]), bool(document["next"])) == (kind, {"double": 3}.get(name, 1), True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("duoble", "error: the trace set has no definition, solution or workload 'duoble'; did you mean 'double'?\n"),
        ("n=8", "error: 'n=8' names several workloads: w0 of double, w1 of double; give more of the uuid"),
        (" ", "`flashinfer-bench list` shows what there is\n"),
    ],
)
def test_a_name_of_nothing_or_of_several_is_refused(show, name, said):
    code, out, err = show(name)
    assert (code, out, said in err) == (2, "", True), err


def test_a_source_cannot_steer_a_terminal(tmp_path, monkeypatch):
    hostile = make_solution("hostile", source="def run(x):\n    return x  # \x1b]0;title\x07\n")
    write_trace_set(tmp_path, definitions=[make_definition()], solutions=[hostile])
    monkeypatch.setattr("sys.stdout", Terminal())
    main(["show", "hostile", "--local", str(tmp_path)])
    written = sys.stdout.getvalue()
    assert ("\\x1b]0;title\\x07" in written, "\x1b" in written) == (True, False)
