"""What commands say of sets: which one is meant, what is wrong in it, what it holds; and of settings."""

import pytest
import torch
from safetensors.torch import save_file

from flashinfer_bench.cli.args import describe_issues
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import LoadIssue
from tests.cli.fake_engine import write_small_set
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

MINE = """
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator

class Mine(DefaultEvaluator):
    "Takes everything."
    @classmethod
    def can_evaluate(cls, definition):
        return True

EVALUATORS = [Mine]
"""
ENDS = "import os, sys\nprint('bye', file=sys.stderr, flush=True)\nos._exit(3)\n"
BLOBS = {"gone": "blob/a", "pointer": "blob/b", "there": "blob/c", "pointer-2": "blob/b"}
FILES = {
    "mine.py": MINE,
    "ends.py": ENDS,
    "mine.yaml": "evaluator_modules: [mine]\n",
    "typo.yaml": "definition_config: {duoble: {rtol: 1}}\n",
}
EMPTY = "error: empty: no definition here; a trace set has definitions/<op_type>/<definition>.json\n"
UNKNOWN = (
    "error: --definitions: the trace set has no definition 'duoble'; did you mean 'double'?\n"
    "error: --op-types: the trace set has no op type 'tset'; did you mean 'test'?\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sets to name: good ones and broken ones."""
    root = tmp_path_factory.mktemp("sets")
    write_small_set(root / "set")
    write_small_set(root / "bad", files={"definitions/test/broken.json": "{"})
    torn = write_small_set(root / "torn", files={"tolerances.yaml": "double: {rtol: 0.1}\n"})
    for file in torn.glob("definitions/test/*.json"):
        file.write_text("{")
    (root / "empty").mkdir()
    blob = {"type": "safetensors", "tensor_key": "x"}
    workloads = [make_workload(uuid, inputs={"x": {**blob, "path": path}}) for uuid, path in BLOBS.items()]
    stored = write_trace_set(
        root / "stored",
        {"blob/b": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"},
        definitions=[make_definition()],
        solutions=[make_solution()],
        workloads=[make_trace(solution=None, workload=workload) for workload in workloads],
    )
    save_file({"x": torch.ones(8)}, str(stored / "blob/c"))
    for name, text in FILES.items():
        (root / name).write_text(text)
    return root


@pytest.fixture
def call(folder, monkeypatch, capsys):
    """Type a command beside the sets; returns exit code, stdout and stderr."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.delenv("FIB_DATASET_PATH", raising=False)
    return lambda line: (main(line.split()), *capsys.readouterr())


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("list empty", 2, EMPTY),
        ("list --local set --local b", 2, "error: trace set 'b' does not exist; give the folder"),
        ("list set nothing", 2, "holds definitions/\n"),
        ("run torn", 2, "error: torn: no definition here"),
        ("list set --definitions duoble --op-types tset", 2, UNKNOWN),
        ("list set --solutions z*", 2, "error: --solutions: the trace set has no solution 'z*'"),
        ("list set --workloads --evaluators", 2, "give one of them"),
        ("list set --config x", 2, "give --evaluators too"),
        ("list bad", 0, "broken.json"),
        ("run set --dry-run --evaluator-modules ends", 2, "(ends) ended with exit code 3; it said last"),
        ("report summary set --workloads zzzz", 2, "error: --workloads: the trace set has no workload with a trace"),
        ("config show --definition double", 2, "give --local PATH"),
        ("config show set --config typo.yaml", 2, "did you mean 'double'?"),
    ],
)
def test_what_is_said_of_a_set_and_its_settings(call, line, code, said):
    found, _, err = call(line)
    assert (found, said in err) == (code, True), err


@pytest.mark.parametrize(
    ("line", "code", "printed"),
    [
        ("validate set", 0, "0 errors, 0 warnings\n"),
        ("validate empty", 1, "error: empty: the set has no definitions"),
        ("validate torn", 1, "1 error, 1 warning\n"),
        ("validate stored", 1, "workload gone of double: blob stored/blob/a is not there"),
        ("validate stored", 1, "workload pointer of double: blob stored/blob/b is a git-lfs pointer"),
        ("list set", 0, "\ndouble      test             2          3       0\n"),
        ("list set --workloads", 0, "w1        double      n=8\n"),
        ("list set --solutions other --author alice", 0, "\nother     double      alice   python\n"),
        (
            "list set --evaluators --config mine.yaml",
            0,
            "double      test     Mine       evaluator_modules: mine",
        ),
        ("run stored --dry-run --devices cpu", 1, "skipped double: 3 of 4 workloads lack their stored inputs: blob "),
        ("run stored --dry-run --devices cpu --workloads there", 0, "1 job "),
    ],
)
def test_what_is_printed_of_a_set(call, line, code, printed):
    found, out, _ = call(line)
    assert (found, printed in out) == (code, True), out


def test_many_warnings_are_counted_and_errors_never_are(tmp_path):
    issues = [LoadIssue(kind, tmp_path, index, None, "odd") for kind in ("warning", "error") for index in range(30)]
    lines = describe_issues(issues)
    assert [sum(line.startswith(kind) for line in lines) for kind in ("error: ", "warning: ")] == [30, 21]
    assert "10 more warnings" in lines[-1]
