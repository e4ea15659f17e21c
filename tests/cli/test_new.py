"""`new definition --reference` and `new workload`: what becomes of annotations, sizes and files."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet

GATHER = (
    'def run(table: "float32[rows, hidden=8]", indices: "int64[taken]", scale: float) -> {}:\n    """Take rows."""\n'
)
TWO_OUTPUTS = GATHER.format('("y: float32[taken, half=hidden // 2]", "int32[]")')


@pytest.fixture
def new(tmp_path, monkeypatch, capsys):
    """Type `new` in a folder with a file of tensors; return the exit code and what was written."""
    monkeypatch.chdir(tmp_path)
    save_file({"a": np.arange(3), "indices": np.arange(5)}, "x.safetensors")

    def start(line, reference=TWO_OUTPUTS):
        Path("ref.py").write_text(reference)
        code = main(["new", *line.split(), "--local", "set", "--format", "json"])
        return code, "".join(capsys.readouterr())

    return start


@pytest.fixture
def gather(new):
    assert new("definition gather --reference ref.py")[0] == 0
    return new


def test_annotations_are_axes_inputs_and_outputs(gather):
    definition = TraceSet.from_path("set").definitions["gather"]
    specs = {name: (one.shape, one.dtype) for name, one in (definition.inputs | definition.outputs).items()}
    assert specs == {
        "table": (["rows", "hidden"], "float32"),
        "indices": (["taken"], "int64"),
        "scale": (None, "float32"),
        "y": (["taken", "half"], "float32"),
        "out1": ([], "int32"),
    }
    assert (definition.var_axes, definition.const_axes) == (["rows", "taken"], {"hidden": 8})
    assert definition.bind_axes({"rows": 2, "taken": 1})["half"] == 4
    assert definition.description == "Take rows."


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("def run(x, y: float): pass", 'write x: "bfloat16[rows, 4096]"'),
        ("def run(x: float): pass", 'write -> "y: bfloat16[rows, 4096]"'),
        (GATHER.format('"flot32[rows]"'), "did you mean 'float32'?"),
        (GATHER.format('"float32[rows"'), "write dtype[axes]"),
        (GATHER.format('"float32[hidden=9]"'), "axis 'hidden' has another value before"),
        (GATHER.format('"table: float32[rows]"'), "'table' is an input as well"),
        ("def run(*x): pass", "name each input"),
        ("def ran(x): pass", "it has no function 'run'"),
        ("def run(x:", "not Python"),
    ],
)
def test_a_reference_that_does_not_state_its_shapes_is_misuse(new, reference, said):
    code, text = new("definition other --reference ref.py", reference)
    assert (code, said in text, Path("set").exists()) == (2, True, False), text


@pytest.mark.parametrize(
    ("line", "axes", "keys"),
    [
        ("--axis rows=9 --input indices=x.safetensors", [{"taken": 5, "rows": 9}], {"indices": "indices"}),
        ("--axis rows=9 --input indices=x.safetensors:a", [{"taken": 3, "rows": 9}], {"indices": "a"}),
        ("--axis rows=2,4 --axis taken=1 --input scale=0.5", [{"rows": n, "taken": 1} for n in (2, 4)], {"scale": 0.5}),
    ],
)
def test_a_workload_has_its_sizes_numbers_and_files(gather, line, axes, keys):
    code, text = gather(f"workload gather {line}")
    trace_set = TraceSet.from_path("set")
    made = [one.workload for one in trace_set.workloads["gather"]]
    assert (code, [one.axes for one in made], trace_set.issues) == (0, axes, [])
    assert json.loads(text)["workloads"] == [one.uuid for one in made]
    for source in (source for one in made for source in one.stored_inputs.values()):
        assert (Path("set") / source.path).read_bytes() == Path("x.safetensors").read_bytes()
    found = {name: getattr(one, "tensor_key", getattr(one, "value", None)) for name, one in made[0].inputs.items()}
    assert found == keys
    assert gather(f"workload gather {line}")[0] == 2  # it is there


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--axis rows=9", "axis 'taken' of gather has no value"),
        ("--axis rows=9 --axis taken=4 --input indices=x.safetensors", "shape [5]"),
        ("--axis rows=9 --axis taken=4 --input indexes=3", "did you mean 'indices'?"),
        ("--axis rows=9 --input indices=x.safetensors:b", "it has a, indices"),
        ("--axis rows=9 --input indices=y.safetensors", "cannot be read"),
        ("--axis rows=9 --axis taken=4 --input indices=3", "a scalar cannot fill it"),
        ("--axis rows=9 --axis taken=4 --axis hidden=9", "fixes axis 'hidden' at 8"),
    ],
)
def test_a_workload_that_does_not_fit_is_misuse_and_nothing_is_written(gather, line, said):
    code, text = gather(f"workload gather {line}")
    assert (code, said in text) == (2, True), text
    assert not Path("set/workloads").exists()
