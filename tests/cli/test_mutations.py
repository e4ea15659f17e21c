"""One thing is broken in a good set: `validate` and `run` agree on whether it is an error, and show no traceback."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import save_file

from flashinfer_bench.cli.entry import call, parse_command_line
from flashinfer_bench.cli.main import cli as main
from tests.cli.fake_engine import FakeEngine, run_with
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
    """Set one value of a JSON file, or of the first line of a JSONL file; `None` as the last step deletes."""

    def change(root):
        text = (root / file).read_text()
        whole = json.loads(text.splitlines()[0] if file.endswith("l") else text)
        inner = whole
        for step in path[:-1]:
            inner = inner[step]
        if to is GONE:
            del inner[path[-1]]
        else:
            inner[path[-1]] = to
        (root / file).write_text(json.dumps(whole) + "\n")

    return change


def write(file, text):
    return lambda root: (root / file).write_bytes(text if isinstance(text, bytes) else text.encode())


def cut(file, size):
    return lambda root: (root / file).write_bytes((root / file).read_bytes()[:size])


def store(**tensors):
    return lambda root: save_file(tensors, str(root / BLOB))


def append(file, text):
    return lambda root: (root / file).write_bytes((root / file).read_bytes() + text.encode())


def replace(file, old, new):
    return lambda root: (root / file).write_text((root / file).read_text().replace(old, new))


GONE = object()
SOURCE = {"path": "main.py", "content": "def run(x, scale): pass"}
LINE = ("workload",)
ERRORS = {
    "definition: no name": put(DEFINITION, "name", to=GONE),
    "definition: an empty name": put(DEFINITION, "name", to=""),
    "definition: a name that is a number": put(DEFINITION, "name", to=7),
    "definition: no axes": put(DEFINITION, "axes", to=GONE),
    "definition: an axis of an unknown type": put(DEFINITION, "axes", "n", "type", to="varr"),
    "definition: a constant that is text": put(DEFINITION, "axes", "h", "value", to="four"),
    "definition: a negative constant": put(DEFINITION, "axes", "h", "value", to=-4),
    "definition: an axis that nothing has": put(DEFINITION, "inputs", "x", "shape", to=["n", "k"]),
    "definition: a shape that is text": put(DEFINITION, "inputs", "x", "shape", to="n"),
    "definition: an unknown dtype": put(DEFINITION, "inputs", "x", "dtype", to="float33"),
    "definition: no dtype": put(DEFINITION, "outputs", "y", "dtype", to=GONE),
    "definition: inputs that are a list": put(DEFINITION, "inputs", to=["x"]),
    "definition: a broken expression": put(DEFINITION, "axes", "h", to={"type": "expr", "expression": "n **"}),
    "definition: broken JSON": cut(DEFINITION, 60),
    "definition: not UTF-8": write(DEFINITION, b"\xff\xfe{}"),
    "definition: an empty file": write(DEFINITION, ""),
    "reference: does not parse": put(DEFINITION, "reference", to="def run(x:\n"),
    "reference: takes too few": put(DEFINITION, "reference", to="def run(x): return x\n"),
    "reference: is a number": put(DEFINITION, "reference", to=3),
    "workload: one broken line more": append(WORKLOADS, '{"definition": "scaled"\n'),
    "workload: no axes": put(WORKLOADS, *LINE, "axes", to={}),
    "workload: an axis that is text": put(WORKLOADS, *LINE, "axes", "n", to="three"),
    "workload: a negative axis": put(WORKLOADS, *LINE, "axes", "n", to=-1),
    "workload: an input of an unknown type": put(WORKLOADS, *LINE, "inputs", "x", "type", to="safetensor"),
    "workload: a misspelt key of inputs": put(WORKLOADS, *LINE, "inputs", to=GONE)
    and put(WORKLOADS, "workload", to={"uuid": "w0", "axes": {"n": 3}, "inputz": {}}),
    "workload: a scalar that is text": put(WORKLOADS, *LINE, "inputs", "scale", "value", to="two"),
    "workload: a scalar for a tensor": put(WORKLOADS, *LINE, "inputs", "x", to={"type": "scalar", "value": 1}),
    "workload: no tensor key": put(WORKLOADS, *LINE, "inputs", "x", "tensor_key", to=GONE),
    "workload: another tensor key": put(WORKLOADS, *LINE, "inputs", "x", "tensor_key", to="z"),
    "workload: a path out of the set": put(WORKLOADS, *LINE, "inputs", "x", "path", to="../x.safetensors"),
    "workload: other rows than the file": put(WORKLOADS, *LINE, "axes", "n", to=5),
    "blob: is gone": lambda root: (root / BLOB).unlink(),
    "blob: is cut": cut(BLOB, 90),
    "blob: has a byte too many": append(BLOB, "x"),
    "blob: is empty": write(BLOB, ""),
    "blob: is a text": write(BLOB, "hello, world; this is no tensor"),
    "blob: another dtype": store(x=torch.ones(3, 4, dtype=torch.float64)),
    "blob: another shape": store(x=torch.ones(4, 3)),
    "blob: another key": store(y=torch.ones(3, 4)),
    "solution: broken JSON": cut(SOLUTION, 50),
    "solution: no sources": put(SOLUTION, "sources", to=[]),
    "solution: an entry point that is no source": put(SOLUTION, "spec", "entry_point", to="other.py::run"),
    "solution: an unknown language": put(SOLUTION, "spec", "language", to="rust"),
    "solution: a source outside": put(SOLUTION, "sources", 0, "path", to="../main.py"),
    "solution: no spec": put(SOLUTION, "spec", to=GONE),
    "tolerances: broken YAML": write("tolerances.yaml", "definition_config: [\n"),
    "tolerances: a negative tolerance": write("tolerances.yaml", "scaled: {atol: -1}\n"),
    "tolerances: a misspelt key": write("tolerances.yaml", "scaled: {attol: 1}\n"),
    "tolerances: no number": write("tolerances.yaml", "scaled: {atol: .nan}\n"),
    "definition: a constant that is no number": replace(DEFINITION, "4", "NaN"),
    "definition: an enormous constant": put(DEFINITION, "axes", "h", "value", to=10**30),
    "definition: twice": lambda root: shutil.copy(root / DEFINITION, root / "definitions/again.json"),
    "definition: an output with an input's name": replace(DEFINITION, '"y"', '"x"'),
    "definition: a constraint that does not parse": put(DEFINITION, "constraints", to=["n >"]),
    "definition: nested without end": write(DEFINITION, "[" * 200_000),
    "definition: an axis that is made of itself": put(
        DEFINITION, "axes", "h", to={"type": "expr", "expression": "h + 1"}
    ),
    "definition: an expression without end": put(DEFINITION, "axes", "h", to={"type": "expr", "expression": "9**9**9"}),
    "reference: has a null byte": put(DEFINITION, "reference", to="def run(x, scale):\n    return x\x00\n"),
    "workload: another constant axis": put(WORKLOADS, *LINE, "axes", "h", to=9),
    "workload: one line that is null": append(WORKLOADS, "null\n"),
    "workload: a uuid of another": lambda root: append(WORKLOADS, (root / WORKLOADS).read_text().replace("2.0", "3.0"))(
        root
    ),
    "workload: an absolute path": put(WORKLOADS, *LINE, "inputs", "x", "path", to="/etc/passwd"),
    "workload: a path with a null byte": put(WORKLOADS, *LINE, "inputs", "x", "path", to="a\0b"),
    "blob: a pipe": lambda root: ((root / BLOB).unlink(), os.mkfifo(root / BLOB)),
    "blob: a link to itself": lambda root: ((root / BLOB).unlink(), (root / BLOB).symlink_to(root / BLOB)),
    "blob: a header without end": write(BLOB, b"\xff" * 7 + b"\x7f{}"),
    "solution: the same source twice": put(SOLUTION, "sources", to=[SOURCE, SOURCE]),
    "solution: twice": lambda root: shutil.copy(root / SOLUTION, root / "solutions/again.json"),
}
WARNINGS = {
    "definition: another name": put(DEFINITION, "name", to="other"),
    "definition: an axis of no type": put(DEFINITION, "axes", "n", to={}),
    "definition: no outputs": put(DEFINITION, "outputs", to={}),
    "definition: a list": write(DEFINITION, "[]"),
    "reference: has no run": put(DEFINITION, "reference", to="def go(x, scale): return x\nimport os\n"),
    "reference: is empty": put(DEFINITION, "reference", to=""),
    "workload: the only line is cut": cut(WORKLOADS, 40),
    "workload: an unknown definition": put(WORKLOADS, "definition", to="scale"),
    "workload: no uuid": put(WORKLOADS, *LINE, "uuid", to=GONE),
    "solution: an unknown definition": put(SOLUTION, "definition", to="scale"),
    "nothing": lambda root: None,
    "definition: an unknown key": put(DEFINITION, "colour", to="red"),
    "solution: a function of another name": put(SOLUTION, "spec", "entry_point", to="main.py::go"),
    "solution: a source that does not parse": put(SOLUTION, "sources", 0, "content", to="def run(x:\n"),
    "solution: too few parameters": put(SOLUTION, "sources", 0, "content", to="def run(): pass\n"),
    "solution: a source with a null byte": put(SOLUTION, "sources", 0, "content", to="def run(): pass\0"),
    "workload: the same line twice": lambda root: append(WORKLOADS, (root / WORKLOADS).read_text())(root),
    "tolerances: an unknown definition": write("tolerances.yaml", "scald: {atol: 1}\n"),
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
        args = parse_command_line(["run", str(root), *flags])
        ran = call(lambda: run_with(FakeEngine, args))
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return checked, ran, out, err

    return look


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_one_for_both(name, outcomes):
    checked, ran, out, _ = outcomes(ERRORS[name], "--quiet")
    assert checked == 1
    assert ran == (2 if name.startswith("tolerances") else 1)
    if ran == 1:
        assert "1 PASSED" in out or "2 PASSED" in out


@pytest.mark.parametrize("name", WARNINGS)
def test_what_is_no_error_is_none_for_both(name, outcomes):
    checked, ran, out, _ = outcomes(WARNINGS[name], "--quiet")
    assert (checked, ran) == (0, 0)
    assert "1 PASSED" in out or "2 PASSED" in out


def test_there_are_eighty_mutations():
    assert len(ERRORS) + len(WARNINGS) >= 80


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
        (["--allow-broken"], 0, True),
        (["--strict"], 1, False),
        (["--definitions", "double"], 0, True),
        (["--definitions", "scaled"], 1, False),
        (["--definitions", "scaled", "double"], 1, True),
        (["--definitions", "scald"], 2, False),
        (["--solutions", "double_python"], 0, True),
        (["--dry-run"], 1, False),
    ],
)
def test_only_what_was_asked_for_counts(flags, code, is_run, outcomes):
    _, ran, out, _ = outcomes(ERRORS["definition: broken JSON"], *flags)
    assert ran == code
    assert ("PASSED" in out) == is_run
