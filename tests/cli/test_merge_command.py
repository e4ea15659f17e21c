"""`report merge`: what several sets become, and when nothing is written."""

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, make_evaluation, make_solution, make_trace, make_workload, write_trace_set

BLOB = {"x": {"type": "safetensors", "path": "./blob/x.safetensors", "tensor_key": "x"}}
STORED = make_trace(solution=None, workload=make_workload("stored", inputs=BLOB))
LINE = make_trace(solution=None, workload=make_workload("w0"))
SHARED = make_trace(workload=make_workload("w0"))
RULES = {"tolerances.yaml": "double:\n  rtol: 0.5\n"}


@pytest.fixture
def merge(tmp_path, capsys):
    """Merge a set with another that shares a definition and a trace; returns exit code, output, stdout and stderr."""

    def start(files=(), parts=(), first=RULES, output="merged"):
        odd = make_definition(foreign="kept")
        write_trace_set(
            tmp_path / "a", definitions=[odd], solutions=[make_solution()], workloads=[LINE], traces=[SHARED]
        )
        write_trace_set(tmp_path / "a", first)
        second = {
            "solutions": [make_solution("other", author="bob")],
            "workloads": [LINE, STORED],
            "traces": [SHARED, make_trace(solution="other", status="TIMEOUT"), make_trace(solution="gone")],
        }
        content = {"blob/x.safetensors": b"tensors", "definitions/test/double.json": odd} | dict(files)
        write_trace_set(tmp_path / "b", {name: one for name, one in content.items() if one}, **(second | dict(parts)))
        named = [word for name in ("a", "b") for word in ("--local", str(tmp_path / name))]
        code = main(["report", "merge", *named, "--output", str(tmp_path / output)])
        return code, tmp_path / output, *capsys.readouterr()

    return start


@pytest.mark.parametrize(
    ("files", "parts", "said"),
    [
        ({}, {"solutions": [make_solution(source="def run(x): return x\n")]}, "solution 'double_python' differs"),
        (
            {},
            {"workloads": [make_trace(solution=None, workload=make_workload("w0", axes={"n": 9}))]},
            "its uuid belongs",
        ),
        ({"tolerances.yaml": "double:\n  rtol: 0.25\n"}, {}, "says something else"),
        ({"blob/y.safetensors": b"others"}, {}, "blob blob/x.safetensors differs between"),
    ],
)
def test_sets_that_contradict_each_other_are_refused_and_nothing_is_written(merge, files, parts, said):
    workload = make_trace(solution=None, workload=make_workload("stored", inputs=BLOB))
    clash = {"workloads/test/double.jsonl": [LINE, workload], "blob/x.safetensors": b"others"}
    code, output, _, err = merge(files, parts, RULES | (clash if "blob/y.safetensors" in files else {}))
    assert (code, said in err, output.exists()) == (2, True, False), err


def test_no_link_that_is_there_is_written_through(merge, tmp_path):
    (tmp_path / "merged").symlink_to(tmp_path / "elsewhere")
    code, output, _, err = merge()
    assert (code, f"{output} is there already" in err, (tmp_path / "elsewhere").exists()) == (2, True, False)


def test_what_cannot_be_read_or_copied_is_told_with_exit_code_1(merge, tmp_path):
    (tmp_path / "merged").mkdir()
    code, _, out, err = merge({"solutions/bob/broken.json": "{", "blob/x.safetensors": None})
    assert (code, "broken.json" in err, "not carried over: blob" in err) == (1, True, True)
    assert out.endswith("3 traces, 0 blobs\n")


def test_a_trace_that_needs_its_model_is_merged_too(merge):
    odd = make_trace(evaluation=make_evaluation(misspelt="kept"))
    code, output, *_ = merge(parts={"traces": [odd, odd]})
    assert (code, len(TraceSet.from_path(output).traces["double"])) == (0, 2)
