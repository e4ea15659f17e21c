"""One thing is broken in a good set: `validate` and `run` agree on whether it is an error, and show no traceback."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import save_file

from flashinfer_bench.cli.main import cli as main
from tests.cli.fake_engine import play_run
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

DEFINITION, WORKLOADS = "definitions/test/scaled.json", "workloads/test/scaled.jsonl"
SOLUTION = "solutions/alice/test/scaled/good.json"
BLOB = "blob/x.safetensors"
REFERENCE = "def run(x, scale):\n    return x * scale\n"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Two definitions, so that something is left whatever is broken in the first one."""
    inputs = {"x": "float32[n, h]", "scale": "float32"}
    axes, outputs = {"n": None, "h": 4}, {"y": "float32[n, h]"}
    scaled = make_definition("scaled", axes=axes, inputs=inputs, outputs=outputs, reference=REFERENCE)
    stored = {"x": {"type": "safetensors", "path": BLOB, "tensor_key": "x"}, "scale": {"type": "scalar", "value": 2.0}}
    workload = make_workload("w0", axes={"n": 3}, inputs=stored)
    root = write_trace_set(
        tmp_path_factory.mktemp("good"),
        definitions=[scaled, make_definition()],
        solutions=[make_solution("good", definition="scaled", source=REFERENCE), make_solution()],
        workloads=[make_trace(definition="scaled", solution=None, workload=workload), make_trace(solution=None)],
    )
    (root / "blob").mkdir()
    save_file({"x": torch.ones(3, 4)}, str(root / BLOB))
    return root


def put(file, *path, to):
    """Set one value of a JSON file, or of the first line of a JSONL file."""

    def change(root):
        whole = inner = json.loads((root / file).read_text())
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = to
        (root / file).write_text(json.dumps(whole) + "\n")

    return change


def line(*path, to):
    return put(WORKLOADS, "workload", *path, to=to)


def write(file, content):
    """Write a file anew, by its content now where that is a function."""

    def change(root):
        path = root / file
        path.write_bytes(content(path.read_bytes()) if callable(content) else content)

    return change


def instead(make):
    """Put something else in the place of the blob."""
    return lambda root: ((root / BLOB).unlink(), make(root / BLOB))


ERRORS = {
    "definition: broken JSON": write(DEFINITION, lambda whole: whole[:60]),
    "definition: a constant that is no number": write(DEFINITION, lambda whole: whole.replace(b"4", b"NaN")),
    "definition: an enormous constant": put(DEFINITION, "axes", "h", "value", to=10**30),
    "definition: a constraint that does not parse": put(DEFINITION, "constraints", to=["n >"]),
    "definition: an expression without end": put(DEFINITION, "axes", "h", to={"type": "expr", "expression": "9**9**9"}),
    "reference: does not parse": put(DEFINITION, "reference", to="def run(x:\n"),
    "reference: has a null byte": put(DEFINITION, "reference", to="def run(x, scale):\n    return x\x00\n"),
    "workload: another tensor key": line("inputs", "x", "tensor_key", to="z"),
    "workload: other rows than the file": line("axes", "n", to=5),
    "workload: one line that is null": write(WORKLOADS, lambda whole: whole + b"null\n"),
    "workload: a path with a null byte": line("inputs", "x", "path", to="a\0b"),
    "blob: is cut": write(BLOB, lambda whole: whole[:90]),
    "blob: has a byte too many": write(BLOB, lambda whole: whole + b"x"),
    "blob: another dtype": lambda root: save_file({"x": torch.ones(3, 4, dtype=torch.float64)}, str(root / BLOB)),
    "blob: a pipe": instead(os.mkfifo),
    "blob: a link to itself": instead(lambda path: path.symlink_to(path)),
    "blob: a header without end": write(BLOB, b"\xff" * 7 + b"\x7f{}"),
    "solution: an entry point that is no source": put(SOLUTION, "spec", "entry_point", to="other.py::run"),
    "solution: twice": lambda root: shutil.copy(root / SOLUTION, root / "solutions/again.json"),
    "tolerances: broken YAML": write("tolerances.yaml", b"definition_config: [\n"),
    "tolerances: a misspelt key": write("tolerances.yaml", b"scaled: {attol: 1}\n"),
}
WARNINGS = {
    "nothing": lambda root: None,
    "definition: no outputs": put(DEFINITION, "outputs", to={}),
    "definition: an unknown key": put(DEFINITION, "colour", to="red"),
    "workload: a path of Windows": line("inputs", "x", "path", to="blob\\x.safetensors"),
    "workload: the only line is cut": write(WORKLOADS, lambda whole: whole[:40]),
    "workload: an unknown definition": put(WORKLOADS, "definition", to="scale"),
    "workload: an axis of 0": put(WORKLOADS, "workload", to={"uuid": "w0", "axes": {"n": 0}, "inputs": {}}),
    "solution: a source that does not parse": put(SOLUTION, "sources", 0, "content", to="def run(x:\n"),
}
"""What is no error: a solution's own faults are verdicts, and parts may belong to another set, which is not named."""


@pytest.fixture
def validate_in_process(good, tmp_path, capfd):
    """Change a copy of the set; return the exit codes of `validate` and of a run that plays its verdicts."""

    def start(name, flags=""):
        root = tmp_path / "set"
        shutil.copytree(good, root)
        (ERRORS | WARNINGS)[name](root)
        codes = main(["validate", str(root)]), play_run([str(root), *flags.split()])[0]
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return codes, out, err

    return start


@pytest.mark.parametrize("name", [*ERRORS, *WARNINGS])
def test_an_error_is_one_for_both_and_a_warning_for_neither(name, validate_in_process):
    codes, out, err = validate_in_process(name)
    is_error, stops = name in ERRORS, name.startswith("tolerances")
    assert codes == (is_error, 2 if stops else is_error)
    assert stops or "1 PASSED" in out or "2 PASSED" in out
    if name == "blob: is cut":  # it is told at the start and beside the result
        reason = "blob blob/x.safetensors: cannot be read"
        assert all(reason in " ".join(text.split()) for text in (err, out.partition("Broken in what was asked for")[2]))
