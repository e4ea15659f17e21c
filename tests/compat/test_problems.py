"""Problems in their own folders: loaded, planned, judged, and their tolerances shown, in their authors' files."""

from __future__ import annotations

import json

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.store.layout import find_foreign_folders
from tests.compat.problems import (
    HALF_A_PERCENT_OFF,
    INPUTS,
    REFERENCE,
    RIGHT,
    STRICT,
    make_answer,
    make_line,
    write_problem,
)
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = pytest.mark.cpu
FEW = {"devices": ["cpu"], "num_trials": 1, "iterations": 3, "warmup_runs": 1, "profile_baseline": False}


def only(items):
    (item,) = items
    return item


def load(folder, **parts):
    """Write a problem's folder, and load it."""
    return TraceSet.from_path(write_problem(folder, **parts))


def plan(trace_set, **how):
    return Benchmark(trace_set, BenchmarkConfig.default(**FEW)).plan(**how)


def test_a_problems_folder_is_a_set_of_one_definition(tmp_path):
    loaded = load(
        tmp_path / "p", lines=[make_line("w0"), make_line("w1", 3, tolerance=STRICT)], answers={"right": RIGHT}
    )
    definition = loaded.definitions["scaled_cumsum"]
    assert (definition.op_type, definition.get_input_shapes({"rows": 8})) == ("custom", [(8, 64), (9,), None])
    first, second = (line.workload for line in loaded.workloads["scaled_cumsum"])
    assert (first.uuid, first.inputs["x"].type, second.tolerance.max_rtol) == ("w0", "custom", 1e-6)
    solution = only(loaded.solutions["scaled_cumsum"])
    assert (solution.name, solution.spec.language.value) == ("right", "python")
    assert solution.get_entry_source().content == RIGHT
    assert {(issue.severity, issue.file.name) for issue in loaded.issues} == {
        ("warning", "definition.json"), ("warning", "solution_right.json")}  # fmt: skip


def test_problems_may_stand_in_groups_which_name_the_op_type(tmp_path):
    for folder, parts in {"L1/first": {}, "L2/second": {"op_type": "gemm"}}.items():
        name = folder[3:]
        answer = write_problem(tmp_path / folder, name=name, **parts) / "solution.json"
        answer.write_text(json.dumps({**make_answer("kernel", definition=name), "name": "mine"}))
        (answer.parent / "kernel.py").write_text(RIGHT)
    loaded = TraceSet.from_path(tmp_path)
    assert {name: item.op_type for name, item in loaded.definitions.items()} == {"first": "L1", "second": "gemm"}
    assert set(loaded.workloads) == {"first", "second"}
    assert [only(group).name for _, group in sorted(loaded.solutions.items())] == ["first.mine", "second.mine"]


@pytest.mark.parametrize(
    ("reference", "file"), [(None, "reference.py"), ("", "reference.py"), ("code/r.py", "code/r.py")]
)
def test_a_reference_may_lie_beside_the_definition(tmp_path, reference, file):
    entry = f"{file}::get_inputs"
    folder = write_problem(tmp_path / "p", reference=reference, custom_inputs_entrypoint=entry)
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(REFERENCE)
    definition = TraceSet.from_path(folder).definitions["scaled_cumsum"]
    assert (definition.is_runnable, definition.custom_inputs_entrypoint) == (True, "get_inputs")


@pytest.mark.parametrize("path", ["../secret.py", "absent.py"])
def test_a_reference_outside_of_its_folder_is_not_read(tmp_path, path):
    (tmp_path / "secret.py").write_text(REFERENCE)
    loaded = load(tmp_path / "p", reference=path)
    assert loaded.definitions["scaled_cumsum"].reference == ""
    assert any(path in issue.reason for issue in loaded.issues)


@pytest.mark.parametrize("file", ["solution_right.json", "solutions/mine.json"])
def test_a_solution_beside_its_problem_may_leave_out_whose_it_is(tmp_path, file):
    folder = write_problem(tmp_path / "L1/p")
    raw = make_answer("right", sources=[{"path": "right.py", "content": RIGHT}])
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps({key: raw[key] for key in ("spec", "sources")}))
    for root in (folder, tmp_path):  # read once, also if the folder is in our layout
        loaded = TraceSet.from_path(root)
        solution = only(loaded.solutions["scaled_cumsum"])
        assert (solution.name, solution.author) == ((folder / file).stem, "unknown")
        assert {issue.severity for issue in loaded.issues} == {"warning"}


def test_blobs_may_lie_in_the_folder_of_their_problem(tmp_path):
    stored = {"type": "safetensors", "path": "./data/x.safetensors", "tensor_key": "x"}
    folder = write_problem(tmp_path / "L1/p", lines=[make_line("w0", inputs={**INPUTS, "x": stored})])
    (folder / "data").mkdir()
    (folder / "data/x.safetensors").write_bytes(b"")
    loaded = TraceSet.from_path(tmp_path)
    workload = only(loaded.workloads["scaled_cumsum"]).workload
    assert workload.inputs["x"].path == "L1/p/data/x.safetensors"
    assert loaded.blob_root("scaled_cumsum", "w0") == tmp_path


STRANGE = {"inputs": {**INPUTS, "x": {"type": "strange"}}}


@pytest.mark.parametrize(
    ("line", "parts", "words"),
    [
        (STRANGE, {}, "strange"),
        ({}, {"custom_inputs_entrypoint": None}, "no custom_inputs_entrypoint"),
        ({}, {"custom_inputs_entrypoint": "absent"}, "the function 'absent', which the reference"),
    ],
)
def test_the_same_fault_in_all_lines_is_one_issue_of_the_file(tmp_path, line, parts, words):
    lines = [make_line(f"w{number}", **line) for number in range(7)]
    loaded = load(tmp_path / "p", lines=[*lines, make_line("fits")], **parts)
    issue = only(issue for issue in loaded.issues if issue.severity == "error")
    assert (issue.file.name, issue.line) == ("workload.jsonl", 1)
    assert words in issue.reason
    count = 7 if line else 8
    assert f"so in {count} lines" in issue.reason
    assert len(loaded.workloads.get("scaled_cumsum", ())) == 8 - count


def test_the_same_holds_in_our_own_layout(tmp_path):
    lines = [make_trace(solution=None, workload=make_workload(f"w{number}", inputs={"x": {"type": "generated"}}))
             for number in range(9)]  # fmt: skip
    issue = only(TraceSet.from_path(write_trace_set(tmp_path, definitions=[make_definition()], workloads=lines)).issues)
    assert "(so in 9 lines of this file)" in issue.reason


LINES = {
    "usual": {},
    "strict": STRICT,
    "capped": {"max_error_cap": 1e-3},
    "loose": {"max_atol": 0.1, "max_rtol": 0.1},
    "added": {"max_atol": 0.02, "max_rtol": 0.004},
    "relative": {"max_atol": 0, "max_rtol": 0.004},
    "wider": {"max_atol": 0, "max_rtol": 0.007},
}
"""Uuid to the workload's tolerance."""


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    lines = [make_line(uuid, **({"tolerance": one} if one else {})) for uuid, one in LINES.items()]
    answers = {"right": RIGHT, "off": HALF_A_PERCENT_OFF}
    root = write_problem(tmp_path_factory.mktemp("set") / "p", lines=lines, answers=answers)
    cache = tmp_path_factory.mktemp("cache")
    engine = Benchmark(TraceSet.from_path(root), BenchmarkConfig.default(**FEW), cache=cache)
    result = engine.run_all()
    assert engine.faults == []
    return root, {(trace.solution, trace.workload.uuid): trace.evaluation for trace in result.traces["scaled_cumsum"]}


def test_a_run_makes_custom_inputs_and_obeys_each_workloads_tolerance(judged):
    root, found = judged
    assert {found["right", uuid].status.value for uuid in LINES} == {"PASSED"}
    refused = [uuid for uuid in LINES if found["off", uuid].status.value == "INCORRECT_NUMERICAL"]
    assert refused == ["strict", "capped", "relative"]
    assert "is over 0.001" in found["off", "capped"].log
    used = {uuid: found["right", uuid].extra["run"]["config"]["rtol"] for uuid in ("usual", "strict")}
    assert used == {"usual": 0.01, "strict": 1e-6}
    again = plan(TraceSet.from_path(root), resume=True)
    assert (len(again.jobs), again.resumed) == (0, 2 * len(LINES))


def test_config_show_prints_the_tolerances_of_workloads_and_their_overrides(judged, capsys):
    command = ["config", "show", "--local", str(judged[0]), "--definition", "scaled_cumsum"]
    assert main([*command, "--format", "json"]) == 0
    workloads = json.loads(capsys.readouterr().out)["workloads"]
    origin = "the workload's tolerance"
    assert workloads["strict"]["rtol"] == {"value": 1e-6, "origin": origin}
    assert workloads["strict"]["extra.summed_tolerance"] == {"value": True, "origin": origin}
    assert workloads["capped"] == {"extra.max_absolute_error": {"value": 1e-3, "origin": origin}}
    assert "usual" not in workloads
    assert main([*command, "--rtol", "0.5"]) == 0
    below = capsys.readouterr().out.partition("workload strict")[2].splitlines()
    assert next(line.split() for line in below if line.startswith(" " * 2 + "rtol")) == ["rtol", "0.5", "flag"]
    assert origin in next(line for line in below if line.split()[:1] == ["atol"])


def lay_over(tmp_path, **changes):
    """Write a set with a definition, and one laid over it with a workload and a solution for it."""
    files = {"workloads/custom/scaled_cumsum.jsonl": [make_line("foreign", **changes)]}
    source = make_solution("theirs", definition="scaled_cumsum", source=RIGHT, destination_passing_style=False)
    return [write_problem(tmp_path / "own"), write_trace_set(tmp_path / "other", files, solutions=[source])]


def dry_run(roots):
    return ["run", *(part for root in roots for part in ("--local", str(root))), "--dry-run", "--devices", "cpu"]


def test_a_tolerance_of_another_set_than_the_definitions_does_not_count(tmp_path, capsys):
    loose = {"max_atol": 9.0, "max_rtol": 9.0}
    roots = lay_over(tmp_path, tolerance=loose, inputs={"scale": {"type": "scalar", "value": 2.0}})
    jobs = plan(TraceSet.merge([TraceSet.from_path(root) for root in roots])).jobs
    assert {job.workload.uuid: job.config.rtol for job in jobs} == {"w0": 0.01, "foreign": 0.01}
    assert main(dry_run(roots)) == 0
    assert "its tolerance does not count" in capsys.readouterr().err


def test_custom_inputs_of_another_set_than_the_first_need_trust(tmp_path, capsys):
    command = dry_run(lay_over(tmp_path)[::-1])
    assert main(command) == 0
    reported = capsys.readouterr()
    assert f"{reported.out}{reported.err}".count("--trust-definitions") == 1
    assert "no job to run" in reported.out
    assert main([*command, "--trust-definitions"]) == 0
    assert "2 jobs" in capsys.readouterr().out


@pytest.mark.parametrize(("folder", "is_own"), [("p", False), ("snapshots/1a2b", True)])
def test_a_definition_behind_a_link_is_the_sets_own_in_a_snapshot_of_a_cache_alone(tmp_path, folder, is_own):
    kept = write_problem(tmp_path / "blobs/p") / "definition.json"
    problem = write_problem(tmp_path / folder / "p", answers={"right": RIGHT})
    (problem / "definition.json").unlink()
    (problem / "definition.json").symlink_to(kept)
    made = plan(TraceSet.from_path(tmp_path / folder))
    assert len(made.jobs) == is_own
    assert [skip for skip in made.skips if "--trust-definitions" in skip.reason] == [*made.skips][: not is_own]


def test_no_worker_reads_the_folder_of_a_problem(tmp_path):
    problem = write_problem(tmp_path / "L1/p", answers={"right": RIGHT})
    loaded = TraceSet.from_path(tmp_path)
    files = [*loaded.definition_files.values(), *loaded.solution_files.values()]
    assert find_foreign_folders(files, loaded.roots) == {problem}
    ours = TraceSet.from_path(write_trace_set(tmp_path / "set", definitions=[make_definition()]))
    assert find_foreign_folders(ours.definition_files.values(), ours.roots) == set()
