"""`report merge`: what several sets become, and when nothing is written."""

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, make_evaluation, make_solution, make_trace, make_workload, write_trace_set

BLOB = {"x": {"type": "safetensors", "path": "./blob/x.safetensors", "tensor_key": "x"}}
STORED = make_trace(solution=None, workload=make_workload("stored", inputs=BLOB))


def write_parts(tmp_path, **second):
    """Write a set, and a second one that shares a definition and a trace with it, and has more of its own."""
    shared = make_trace(workload=make_workload("w0"))
    first = write_trace_set(
        tmp_path / "a",
        {"tolerances.yaml": "double:\n  rtol: 0.5\n"},
        definitions=[make_definition(foreign="kept")],
        solutions=[make_solution()],
        workloads=[make_trace(solution=None, workload=make_workload("w0"))],
        traces=[shared],
    )
    files = {"blob/x.safetensors": b"tensors", "definitions/test/double.json": make_definition(foreign="kept")}
    parts = {
        "solutions": [make_solution("other", author="bob")],
        "workloads": [make_trace(solution=None, workload=make_workload("w0")), STORED],
        "traces": [shared, make_trace(solution="other", status="TIMEOUT"), make_trace(solution="gone")],
    }
    return first, write_trace_set(tmp_path / "b", files | second.pop("files", {}), **(parts | second))


def merge(*roots, output):
    return main(["report", "merge", *(part for root in roots for part in ("--local", str(root))), "--output", output])


def files_of(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_what_two_sets_share_is_written_once_and_the_rest_is_kept(tmp_path, capsys):
    output = tmp_path / "new" / "merged"
    assert merge(*write_parts(tmp_path), output=str(output)) == 0
    said = f"{output}: 1 definition, 2 solutions, 2 workloads, 3 traces, 1 blob\n"
    assert capsys.readouterr() == (said, "")
    assert files_of(output) == [
        "blob/x.safetensors",
        "definitions/test/double.json",
        "solutions/alice/test/double/double_python.json",
        "solutions/bob/test/double/other.json",
        "tolerances.yaml",
        "traces/alice/test/double.jsonl",
        "traces/bob/test/double.jsonl",
        "traces/unknown/test/double.jsonl",
        "workloads/test/double.jsonl",
    ]
    merged = TraceSet.from_path(output)
    assert [issue.reason for issue in merged.issues] == ["kept without effect: foreign"]
    assert [trace.workload.uuid for trace in merged.workloads["double"]] == ["w0", "stored"]
    assert {(trace.solution, trace.evaluation.status.value) for trace in merged.traces["double"]} == {
        ("double_python", "PASSED"),
        ("other", "TIMEOUT"),
        ("gone", "PASSED"),
    }
    assert (output / "tolerances.yaml").read_text() == "double:\n  rtol: 0.5\n"


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"solutions": [make_solution(source="def run(x): return x\n")]}, "solution 'double_python' differs"),
        ({"workloads": [make_trace(solution=None, workload=make_workload("w0", axes={"n": 9}))]}, "its uuid belongs"),
        ({"files": {"tolerances.yaml": "double:\n  rtol: 0.25\n"}}, "says something else"),
    ],
)
def test_sets_that_contradict_each_other_are_refused_and_nothing_is_written(tmp_path, capsys, second, said):
    assert merge(*write_parts(tmp_path, **second), output=str(tmp_path / "merged")) == 2
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_blobs_of_one_path_that_differ_are_refused(tmp_path, capsys):
    first, second = write_parts(tmp_path)
    write_trace_set(first, {"blob/x.safetensors": b"others"}, workloads=[STORED])
    assert merge(first, second, output=str(tmp_path / "merged")) == 2
    assert "blob blob/x.safetensors differs between" in capsys.readouterr().err
    assert not (tmp_path / "merged").exists()


def test_no_link_that_is_there_is_written_through(tmp_path, capsys):
    (output := tmp_path / "merged").symlink_to(tmp_path / "elsewhere")
    assert merge(*write_parts(tmp_path), output=str(output)) == 2
    assert f"{output} is there already" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()


def test_what_cannot_be_read_or_copied_is_told_with_exit_code_1(tmp_path, capsys):
    first, second = write_parts(tmp_path, files={"solutions/bob/broken.json": "{"})
    (second / "blob" / "x.safetensors").unlink()
    (tmp_path / "merged").mkdir()
    assert merge(first, second, output=str(tmp_path / "merged")) == 1
    said = capsys.readouterr()
    assert "broken.json" in said.err
    assert "not carried over: blob" in said.err
    assert said.out.endswith("3 traces, 0 blobs\n")


def test_a_trace_that_needs_its_model_is_merged_too(tmp_path, capsys):
    odd = make_trace(evaluation=make_evaluation(misspelt="kept"))
    first, second = write_parts(tmp_path, traces=[odd, odd])
    assert merge(first, second, output=str(tmp_path / "merged")) == 0
    assert len(TraceSet.from_path(tmp_path / "merged").traces["double"]) == 2
