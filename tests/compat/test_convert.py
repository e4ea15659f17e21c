"""`convert` writes a set of any layout in the standard layout, and lists the parts that it could not convert."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from tests.compat.problems import INPUTS, RIGHT, STRICT, make_line, write_problem
from tests.compat.test_dumps import dumped
from tests.kit import make_definition, make_solution, make_trace, write_trace_set

pytestmark = pytest.mark.cpu


def convert(source, output, capsys, *, code=0):
    assert main(["convert", str(source), "--output", str(output), "--format", "json"]) == code
    reported = capsys.readouterr()
    return json.loads(reported.out), reported.err


def test_problems_and_dumps_become_a_set_with_all_they_have(tmp_path, capsys):
    stored = {"type": "safetensors", "path": "./x.safetensors", "tensor_key": "x"}
    lines = [make_line("w0", tolerance=STRICT), make_line("w1", inputs={**INPUTS, "x": stored})]
    problem = write_problem(tmp_path / "all/L1/p", lines=lines, answers={"right": RIGHT})
    save_file({"x": torch.zeros(8, 64)}, problem / "x.safetensors")
    (tmp_path / "all/a.json").write_text(json.dumps(dumped("a")))
    document, _ = convert(tmp_path / "all", tmp_path / "out", capsys)
    counts = {"definitions": 2, "solutions": 1, "workloads": 2, "blobs": 1, "lost": []}
    assert {key: document[key] for key in counts} == counts
    read = TraceSet.from_path(tmp_path / "out")
    assert {issue.severity for issue in read.issues} == {"warning"}
    assert (read.definitions["scaled_cumsum"].op_type, read.definitions["a"].is_runnable) == ("L1", True)
    first, second = (line.workload for line in read.workloads["scaled_cumsum"])
    assert (first.tolerance.max_rtol, second.inputs["x"].path) == (1e-6, "L1/p/x.safetensors")
    assert (tmp_path / "out/L1/p/x.safetensors").is_file()
    assert read.solutions["scaled_cumsum"][0].get_entry_source().content == RIGHT
    assert (tmp_path / "out/solutions/somebody/L1/scaled_cumsum/right.json").is_file()


def test_our_own_layout_stays_as_it_is(tmp_path, capsys):
    source = write_trace_set(
        tmp_path / "set",
        {"tolerances.yaml": "double:\n  rtol: 0.5\n"},
        definitions=[make_definition()],
        solutions=[make_solution()],
        workloads=[make_trace(solution=None)],
        traces=[make_trace(), make_trace(solution="somebody_elses")],
    )
    document, _ = convert(source, tmp_path / "out", capsys)
    assert (document["traces"], document["read_otherwise"]) == (2, [])
    first, again = TraceSet.from_path(source), TraceSet.from_path(tmp_path / "out")
    for part in ("definitions", "solutions", "workloads", "traces"):
        assert getattr(again, part) == getattr(first, part), part
    assert (tmp_path / "out/tolerances.yaml").read_text() == (source / "tolerances.yaml").read_text()


def test_losses_are_reported_and_the_exit_code_is_1(tmp_path, capsys):
    stored = {"type": "safetensors", "path": "blob/absent.safetensors", "tensor_key": "x"}
    write_problem(tmp_path / "all/p", lines=[make_line("w0", inputs={**INPUTS, "x": stored})])
    (tmp_path / "all/dump.json").write_text(json.dumps(dumped("a", inputs={"x": {"shape": ["n"], "dtype": "unknown"}})))
    document, reported = convert(tmp_path / "all", tmp_path / "out", capsys, code=1)
    assert (document["definitions"], document["workloads"], len(document["lost"])) == (1, 1, 2)
    assert "not carried over: blob" in reported
    assert "not carried over: what the 1 error above is about" in reported


@pytest.mark.parametrize(
    ("source", "output", "words"),
    [
        ("absent", "out", "absent does not exist\n"),
        ("empty", "out", "nothing that can be converted"),
        ("p", "p/out", "write to another folder"),
        ("p", "full", "new or empty"),
    ],
)
def test_an_unusable_location_is_misuse(tmp_path, capsys, source, output, words):
    write_problem(tmp_path / "p")
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    assert main(["convert", str(tmp_path / source), "--output", str(tmp_path / output)]) == 2
    assert words in capsys.readouterr().err
