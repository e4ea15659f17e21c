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
    root = tmp_path_factory.mktemp("good")
    inputs = {"x": "float32[n, h]", "scale": "float32"}
    axes, outputs = {"n": None, "h": 4}, {"y": "float32[n, h]"}
    scaled = make_definition("scaled", axes=axes, inputs=inputs, outputs=outputs, reference=REFERENCE)
    stored = {"x": {"type": "safetensors", "path": BLOB, "tensor_key": "x"}, "scale": {"type": "scalar", "value": 2.0}}
    write_trace_set(
        root,
        definitions=[scaled, make_definition()],
        solutions=[make_solution("good", definition="scaled", source=REFERENCE), make_solution()],
        workloads=[
            make_trace(definition="scaled", solution=None, workload=make_workload("w0", axes={"n": 3}, inputs=stored)),
            make_trace(solution=None),
        ],
    )
    (root / "blob").mkdir()
    save_file({"x": torch.ones(3, 4)}, str(root / BLOB))
    return root


def put(file, *path, to):
    """Set one value of a JSON file, or of the first line of a JSONL file."""

    def change(root):
        text = (root / file).read_text()
        whole = json.loads(text.splitlines()[0] if file.endswith("l") else text)
        inner = whole
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = to
        (root / file).write_text(json.dumps(whole) + "\n")

    return change


def line(*path, to):
    return put(WORKLOADS, "workload", *path, to=to)


def write(file, text):
    return lambda root: (root / file).write_bytes(text.encode("latin-1"))


def cut(file, size):
    return lambda root: (root / file).write_bytes((root / file).read_bytes()[:size])


def store(**tensors):
    return lambda root: save_file(tensors, str(root / BLOB))


def append(file, text):
    return lambda root: (root / file).write_bytes((root / file).read_bytes() + text.encode())


def replace(file, old, new):
    return lambda root: (root / file).write_text((root / file).read_text().replace(old, new))


ERRORS = {
    "definition: broken JSON": cut(DEFINITION, 60),
    "reference: does not parse": put(DEFINITION, "reference", to="def run(x:\n"),
    "workload: another tensor key": line("inputs", "x", "tensor_key", to="z"),
    "workload: other rows than the file": line("axes", "n", to=5),
    "blob: is cut": cut(BLOB, 90),
    "blob: has a byte too many": append(BLOB, "x"),
    "blob: another dtype": store(x=torch.ones(3, 4, dtype=torch.float64)),
    "solution: an entry point that is no source": put(SOLUTION, "spec", "entry_point", to="other.py::run"),
    "tolerances: broken YAML": write("tolerances.yaml", "definition_config: [\n"),
    "tolerances: a misspelt key": write("tolerances.yaml", "scaled: {attol: 1}\n"),
    "definition: a constant that is no number": replace(DEFINITION, "4", "NaN"),
    "definition: an enormous constant": put(DEFINITION, "axes", "h", "value", to=10**30),
    "definition: a constraint that does not parse": put(DEFINITION, "constraints", to=["n >"]),
    "definition: an expression without end": put(DEFINITION, "axes", "h", to={"type": "expr", "expression": "9**9**9"}),
    "reference: has a null byte": put(DEFINITION, "reference", to="def run(x, scale):\n    return x\x00\n"),
    "workload: one line that is null": append(WORKLOADS, "null\n"),
    "workload: a path with a null byte": line("inputs", "x", "path", to="a\0b"),
    "blob: a pipe": lambda root: ((root / BLOB).unlink(), os.mkfifo(root / BLOB)),
    "blob: a link to itself": lambda root: ((root / BLOB).unlink(), (root / BLOB).symlink_to(root / BLOB)),
    "blob: a header without end": write(BLOB, "\xff" * 7 + "\x7f{}"),
    "solution: twice": lambda root: shutil.copy(root / SOLUTION, root / "solutions/again.json"),
}
WARNINGS = {
    "definition: no outputs": put(DEFINITION, "outputs", to={}),
    "workload: the only line is cut": cut(WORKLOADS, 40),
    "workload: an unknown definition": put(WORKLOADS, "definition", to="scale"),
    "nothing": lambda root: None,
    "definition: an unknown key": put(DEFINITION, "colour", to="red"),
    "solution: a source that does not parse": put(SOLUTION, "sources", 0, "content", to="def run(x:\n"),
    "workload: an axis of 0": put(WORKLOADS, "workload", to={"uuid": "w0", "axes": {"n": 0}, "inputs": {}}),
}
"""What is no error: a solution's own faults are verdicts, and parts may belong to another set, which is not named."""


@pytest.fixture
def outcomes(good, tmp_path, capfd):
    """Change a copy of the set; return the exit codes of `validate` and of a run that plays its verdicts."""

    def look(change, *flags):
        root = tmp_path / "set"
        shutil.copytree(good, root)
        change(root)
        checked = main(["validate", str(root)])
        ran, _ = play_run([str(root), *flags])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return checked, ran, out, err

    return look


@pytest.mark.parametrize("name", [*ERRORS, *WARNINGS])
def test_an_error_is_one_for_both_and_a_warning_for_neither(name, outcomes):
    checked, ran, out, _ = outcomes((ERRORS | WARNINGS)[name], "--quiet")
    is_error, stops = name in ERRORS, name.startswith("tolerances") and name in ERRORS
    assert (checked, ran) == (is_error, 2 if stops else is_error)
    assert stops or "1 PASSED" in out or "2 PASSED" in out


def test_broken_data_is_told_at_the_start_and_beside_the_result(outcomes):
    _, ran, out, err = outcomes(ERRORS["blob: is cut"])
    assert ran == 1
    reason = "blob blob/x.safetensors: cannot be read"
    assert reason in " ".join(err.split())
    assert "Broken in what was asked for" in out
    assert reason in " ".join(out.partition("Broken in")[2].split())


@pytest.mark.parametrize(
    ("flags", "code", "is_run"),
    [
        (["--definitions", "double"], 0, True),
        (["--definitions", "scaled"], 1, False),
        (["--definitions", "scaled", "double"], 1, True),
        (["--solutions", "double_python"], 0, True),
        (["--dry-run"], 1, False),
    ],
)
def test_only_what_was_asked_for_counts(flags, code, is_run, outcomes):
    _, ran, out, _ = outcomes(ERRORS["definition: broken JSON"], *flags)
    assert ran == code
    assert ("PASSED" in out) == is_run
