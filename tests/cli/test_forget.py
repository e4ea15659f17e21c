"""What leaves the files of a set: `forget NAME`, and `validate --prune`."""

import json

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from tests.cli.fake_engine import write_small_set
from tests.kit import make_solution, make_trace, make_workload

TASK = {"extra": {"run": {"task": "t1", "author": "bob"}}}
FILE = "traces/alice/test/double.jsonl"


@pytest.fixture
def root(tmp_path):
    """A set with traces of two solutions, three orphans, a task's trace, and a line that is cut off."""
    lost = {"workload": make_workload("lost")}
    orphans = [make_trace(solution="gone"), make_trace(**lost), make_trace(solution="served", **lost, **TASK)]
    kept = [make_trace(), make_trace(solution="other"), make_trace(solution="served", **TASK)]
    elsewhere = make_trace(definition="away").to_json() + "\n"
    root = write_small_set(
        tmp_path / "set", files={"traces/alice/test/away.jsonl": elsewhere}, traces=[*orphans, *kept]
    )
    with (root / FILE).open("a") as file:
        file.write('{"definition": "dou')
    return root


def read_names(root):
    return sorted(trace.solution for trace in TraceSet.from_path(root).all_traces())


def test_a_solution_goes_with_its_traces_and_nothing_else_does(root, capsys):
    assert main(["forget", "other", str(root), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["traces"] == {str(root / FILE): 1}
    assert not list(root.glob("solutions/**/other.json"))
    assert read_names(root) == [*["double_python"] * 3, "gone", "served", "served"]
    assert (root / FILE).read_text().endswith('\n{"definition": "dou')
    assert main(["forget", "gone", "--local", str(root)]) == 0
    assert capsys.readouterr().out == f"removed 1 trace of {root / FILE}\n"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("forget othr SET", 2, "has no solution 'othr'; did you mean 'other'?"),
        ("forget nobody SET", 2, "list --solutions` shows the names"),
        ("forget other nowhere", 2, "does not exist"),
        ("forget linked SET", 2, "is a link to"),
        ("validate SET --prune --definition double", 2, "--prune is about the whole set"),
        ("validate SET/alone --prune", 2, "nothing was removed, since a part of the set may be missing"),
    ],
)
def test_what_cannot_be_removed_stays(root, tmp_path, capsys, line, code, said):
    outside, alone = tmp_path / "linked.json", root / "alone/solutions/alice/test/double"
    outside.write_text(make_solution("linked").to_json())
    (root / "solutions/alice/test/double/linked.json").symlink_to(outside)
    alone.mkdir(parents=True)
    (alone / "x.json").write_text(make_solution("x").to_json())
    assert main(line.replace("SET", str(root)).split()) == code
    assert said in capsys.readouterr().err
    assert (outside.exists(), len(read_names(root))) == (True, 7)


def test_pruning_removes_what_names_a_part_that_is_gone_but_no_task_of_a_server(root, capsys):
    assert main(["validate", str(root), "--prune"]) == 0
    out = capsys.readouterr().out
    assert all(part in out for part in ("1 trace of solution 'gone'", f"pruned: 3 traces of {root / FILE}\n"))
    assert (read_names(root), (root / "traces/alice/test/away.jsonl").exists()) == (
        ["double_python", "other", "served"],
        False,
    )
    assert main(["validate", str(root), "--prune"]) == 0
    assert "pruned: nothing" in capsys.readouterr().out


def test_reports_name_the_author_of_a_submitted_solution(root, capsys):
    assert main(["report", "summary", str(root), "--by", "author", "--format", "json"]) == 0
    assert "bob" in capsys.readouterr().out
