"""Problems in folders of their own: loaded, planned, judged, and their tolerances told, as their authors left them."""

from __future__ import annotations

import json

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.store.layout import find_loose_folders
from flashinfer_bench.data.workload import CustomInput
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


UUIDS = ("usual", "strict", "capped", "loose", "added", "relative")


def only(items):
    (item,) = items
    return item


def test_a_problems_folder_is_a_set_of_one_definition(tmp_path):
    lines = [make_line("w0"), make_line("w1", 3, tolerance=STRICT)]
    loaded = TraceSet.from_path(write_problem(tmp_path / "p", lines=lines, answers={"right": RIGHT}))
    definition = loaded.definitions["scaled_cumsum"]
    assert definition.op_type == "custom"
    assert definition.get_input_shapes({"rows": 8}) == [(8, 64), (9,), None]
    assert [line.workload.uuid for line in loaded.workloads["scaled_cumsum"]] == ["w0", "w1"]
    assert isinstance(loaded.workloads["scaled_cumsum"][0].workload.inputs["x"], CustomInput)
    assert loaded.workloads["scaled_cumsum"][1].workload.tolerance.max_rtol == 1e-6
    solution = only(loaded.solutions["scaled_cumsum"])
    assert (solution.name, solution.spec.language.value) == ("right", "python")
    assert solution.get_entry_source().content == RIGHT
    assert {issue.severity for issue in loaded.issues} == {"warning"}
    assert sorted({issue.file.name for issue in loaded.issues}) == ["definition.json", "solution_right.json"]


def test_problems_may_stand_in_groups_which_name_the_op_type(tmp_path):
    write_problem(tmp_path / "L1/first", name="first")
    write_problem(tmp_path / "L2/second", name="second", op_type="gemm")
    loaded = TraceSet.from_path(tmp_path)
    assert {name: item.op_type for name, item in loaded.definitions.items()} == {"first": "L1", "second": "gemm"}
    assert set(loaded.workloads) == {"first", "second"}


@pytest.mark.parametrize(
    ("reference", "file"), [(None, "reference.py"), ("", "reference.py"), ("code/r.py", "code/r.py")]
)
def test_a_reference_may_lie_beside_the_definition(tmp_path, reference, file):
    changes = {"reference": reference, "custom_inputs_entrypoint": f"{file}::get_inputs"}
    folder = write_problem(tmp_path / "p", **changes)
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(REFERENCE)
    loaded = TraceSet.from_path(folder)
    assert loaded.definitions["scaled_cumsum"].is_runnable
    assert loaded.definitions["scaled_cumsum"].custom_inputs_entrypoint == "get_inputs"
    assert len(loaded.workloads["scaled_cumsum"]) == 1


@pytest.mark.parametrize("path", ["../secret.py", "absent.py"])
def test_a_reference_outside_of_its_folder_is_not_read(tmp_path, path):
    (tmp_path / "secret.py").write_text(REFERENCE)
    loaded = TraceSet.from_path(write_problem(tmp_path / "p", reference=path))
    assert loaded.definitions["scaled_cumsum"].reference == ""
    assert any(path in issue.reason for issue in loaded.issues)


def test_a_solution_beside_its_problem_may_leave_out_whose_it_is(tmp_path):
    folder = write_problem(tmp_path / "p", answers={"right": RIGHT})
    raw = json.loads((folder / "solution_right.json").read_text())
    (folder / "solution_right.json").write_text(json.dumps({key: raw[key] for key in ("spec", "sources")}))
    solution = only(TraceSet.from_path(folder).solutions["scaled_cumsum"])
    assert (solution.name, solution.author) == ("solution_right", "unknown")


def test_solutions_may_lie_in_a_folder_of_their_problem(tmp_path):
    folder = write_problem(tmp_path / "L1/p")
    (folder / "solutions").mkdir()
    answer = make_answer("right", sources=[{"path": "right.py", "content": RIGHT}])
    (folder / "solutions/mine.json").write_text(json.dumps({**answer, "definition": ""}))
    for root in (folder, tmp_path):  # read once, also where the folder is one of our layout
        loaded = TraceSet.from_path(root)
        assert only(loaded.solutions["scaled_cumsum"]).name == "right"
        assert {issue.severity for issue in loaded.issues} == {"warning"}


def test_solutions_of_several_problems_may_have_one_name(tmp_path):
    for name in ("first", "second"):
        folder = write_problem(tmp_path / name, name=name)
        answer = {**make_answer("kernel", definition=name), "name": "mine"}
        (folder / "solution.json").write_text(json.dumps(answer))
        (folder / "kernel.py").write_text(RIGHT)
    loaded = TraceSet.from_path(tmp_path)
    assert {name: only(group).name for name, group in loaded.solutions.items()} == {
        "first": "first.mine", "second": "second.mine"}  # fmt: skip


def test_blobs_may_lie_in_the_folder_of_their_problem(tmp_path):
    stored = {"type": "safetensors", "path": "./data/x.safetensors", "tensor_key": "x"}
    line = make_line("w0", inputs={**INPUTS, "x": stored})
    folder = write_problem(tmp_path / "L1/p", lines=[line])
    (folder / "data").mkdir()
    (folder / "data/x.safetensors").write_bytes(b"")
    loaded = TraceSet.from_path(tmp_path)
    workload = only(loaded.workloads["scaled_cumsum"]).workload
    assert workload.inputs["x"].path == "L1/p/data/x.safetensors"
    assert loaded.blob_root("scaled_cumsum", "w0") == tmp_path


def test_one_unknown_kind_of_input_is_one_line_for_a_file(tmp_path):
    strange = {**INPUTS, "x": {"type": "strange"}, "offsets": {"type": "strange"}}
    lines = [make_line(f"w{number}", inputs=strange) for number in range(50)]
    loaded = TraceSet.from_path(
        write_problem(tmp_path / "p", lines=[*lines, make_line("fits")], hf_id=None, op_type="t")
    )
    issue = only(loaded.issues)
    assert (issue.severity, issue.file.name, issue.line) == ("error", "workload.jsonl", 1)
    assert "so in 50 lines" in issue.reason
    assert [line.workload.uuid for line in loaded.workloads["scaled_cumsum"]] == ["fits"]


def test_the_same_holds_in_our_own_layout(tmp_path):
    lines = [make_trace(solution=None, workload=make_workload(f"w{number}", inputs={"x": {"type": "generated"}}))
             for number in range(9)]  # fmt: skip
    issue = only(TraceSet.from_path(write_trace_set(tmp_path, definitions=[make_definition()], workloads=lines)).issues)
    assert "(so in 9 lines of this file)" in issue.reason


def test_two_hundred_problems_load(tmp_path):
    unknown = {**STRICT, "allow_negative_inf": True}
    lines = [make_line(f"w{number}", number + 1, tolerance=unknown) for number in range(3)]
    for number in range(200):
        write_problem(tmp_path / f"L{number % 3}/p{number}", name=f"p{number}", lines=lines)
    loaded = TraceSet.from_path(tmp_path)
    assert len(loaded.definitions) == 200
    assert sum(map(len, loaded.workloads.values())) == 600
    assert "kept without effect: allow_negative_inf (so in 3 lines" in loaded.issues[-1].reason


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    lines = [
        make_line("usual"),
        make_line("strict", tolerance=STRICT),
        make_line("capped", tolerance={"max_error_cap": 1e-3}),
        make_line("loose", tolerance={"max_atol": 0.1, "max_rtol": 0.1}),
        make_line("added", tolerance={"max_atol": 0.02, "max_rtol": 0.004}),
        make_line("relative", tolerance={"max_atol": 0, "max_rtol": 0.004}),
    ]
    answers = {"right": RIGHT, "off": HALF_A_PERCENT_OFF}
    root = write_problem(tmp_path_factory.mktemp("set") / "p", lines=lines, answers=answers)
    cache = tmp_path_factory.mktemp("cache")
    engine = Benchmark(TraceSet.from_path(root), BenchmarkConfig.default(**FEW), cache=cache)
    result = engine.run_all()
    assert engine.faults == []
    return root, {(trace.solution, trace.workload.uuid): trace for trace in result.traces["scaled_cumsum"]}


def test_a_run_makes_custom_inputs_and_obeys_each_workloads_tolerance(judged):
    _, traces = judged
    found = {key: trace.evaluation.status.value for key, trace in traces.items()}
    assert {found["right", uuid] for uuid in UUIDS} == {"PASSED"}
    off = {uuid: found["off", uuid] for uuid in UUIDS}
    wrong = "INCORRECT_NUMERICAL"
    assert off == {"usual": "PASSED", "strict": wrong, "capped": wrong, "loose": "PASSED", "added": "PASSED",
                   "relative": wrong}  # fmt: skip
    assert "is over 0.001" in traces["off", "capped"].evaluation.log


def test_each_trace_tells_the_tolerance_it_was_judged_by(judged):
    root, traces = judged
    config = {uuid: traces["right", uuid].evaluation.extra["run"]["config"] for uuid in ("usual", "strict")}
    assert (config["usual"]["rtol"], config["strict"]["rtol"]) == (0.01, 1e-6)
    saved = TraceSet.from_path(root)
    assert len(saved.traces["scaled_cumsum"]) == 12
    plan = Benchmark(saved, BenchmarkConfig.default(**FEW)).plan(resume=True)
    assert (len(plan.jobs), plan.resumed) == (0, 12)


def test_config_show_tells_what_workloads_say_and_who_beats_them(judged, capsys):
    root, _ = judged
    command = ["config", "show", "--local", str(root), "--definition", "scaled_cumsum"]
    assert main([*command, "--format", "json"]) == 0
    workloads = json.loads(capsys.readouterr().out)["workloads"]
    origin = "the workload's tolerance"
    assert workloads["strict"]["rtol"] == {"value": 1e-6, "origin": origin}
    assert workloads["strict"]["extra.summed_tolerance"] == {"value": True, "origin": origin}
    assert workloads["capped"] == {"extra.max_absolute_error": {"value": 1e-3, "origin": origin}}
    assert "usual" not in workloads
    assert main([*command, "--rtol", "0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    below = lines[lines.index(next(line for line in lines if line.startswith("workload strict"))) :]
    assert next(line.split() for line in below if line.split()[0] == "rtol") == ["rtol", "0.5", "flag"]
    assert origin in next(line for line in below if line.split()[0] == "atol")


def lay_over(tmp_path, **changes):
    """Write a set with a definition, and one laid over it with a workload and a solution for it."""
    own = write_problem(tmp_path / "own")
    other = tmp_path / "other"
    files = {"workloads/custom/scaled_cumsum.jsonl": [make_line("foreign", **changes)]}
    source = make_solution("theirs", definition="scaled_cumsum", source=RIGHT, destination_passing_style=False)
    return [own, write_trace_set(other, files, solutions=[source])]


def test_a_tolerance_of_another_set_than_the_definitions_does_not_count(tmp_path, capsys):
    loose = {"max_atol": 9.0, "max_rtol": 9.0}
    roots = lay_over(tmp_path, tolerance=loose, inputs={"scale": {"type": "scalar", "value": 2.0}})
    merged = TraceSet.merge([TraceSet.from_path(root) for root in roots])
    jobs = Benchmark(merged, BenchmarkConfig.default(**FEW)).plan().jobs
    assert {job.workload.uuid: job.config.rtol for job in jobs} == {"w0": 0.01, "foreign": 0.01}
    named = [part for root in roots for part in ("--local", str(root))]
    assert main(["run", *named, "--dry-run", "--devices", "cpu"]) == 0
    assert "its tolerance does not count" in capsys.readouterr().err


def test_custom_inputs_of_another_set_than_the_first_need_trust(tmp_path, capsys):
    roots = lay_over(tmp_path)
    named = [part for root in roots[::-1] for part in ("--local", str(root))]
    command = ["run", *named, "--dry-run", "--devices", "cpu"]
    assert main(command) == 0
    told = capsys.readouterr()
    assert f"{told.out}{told.err}".count("--trust-definitions") == 1
    assert "no job to run" in told.out
    assert main([*command, "--trust-definitions"]) == 0
    assert "2 jobs" in capsys.readouterr().out


def test_a_definition_behind_a_link_is_not_the_sets_own(tmp_path):
    elsewhere = write_problem(tmp_path / "elsewhere")
    folder = write_problem(tmp_path / "p", answers={"right": RIGHT})
    (folder / "definition.json").unlink()
    (folder / "definition.json").symlink_to(elsewhere / "definition.json")
    plan = Benchmark(TraceSet.from_path(folder), BenchmarkConfig.default(**FEW)).plan()
    assert plan.jobs == ()
    assert "--trust-definitions" in only(plan.skips).reason


@pytest.mark.parametrize(
    ("entry", "words"),
    [(None, "no custom_inputs_entrypoint"), ("absent", "the function 'absent', which the reference")],
)
def test_custom_inputs_without_their_function_are_refused_in_one_line(tmp_path, entry, words):
    lines = [make_line(f"w{number}") for number in range(7)]
    loaded = TraceSet.from_path(write_problem(tmp_path / "p", lines=lines, custom_inputs_entrypoint=entry))
    issue = only(issue for issue in loaded.issues if issue.severity == "error")
    assert words in issue.reason
    assert "so in 7 lines" in issue.reason


def test_no_worker_reads_the_folder_of_a_problem(tmp_path):
    problem = write_problem(tmp_path / "L1/p", answers={"right": RIGHT})
    loaded = TraceSet.from_path(tmp_path)
    files = [*loaded.definition_files.values(), *loaded.solution_files.values()]
    assert find_loose_folders(files, loaded.roots) == {problem}
    ours = TraceSet.from_path(write_trace_set(tmp_path / "set", definitions=[make_definition()]))
    assert find_loose_folders(ours.definition_files.values(), ours.roots) == set()


def test_a_definition_in_the_cache_that_its_set_is_a_snapshot_of_is_the_sets_own(tmp_path):
    kept = write_problem(tmp_path / "blobs/p")
    folder = write_problem(tmp_path / "snapshots/1a2b/p", answers={"right": RIGHT})
    (folder / "definition.json").unlink()
    (folder / "definition.json").symlink_to(kept / "definition.json")
    loaded = TraceSet.from_path(tmp_path / "snapshots/1a2b")
    assert len(Benchmark(loaded, BenchmarkConfig.default(**FEW)).plan().jobs) == 1
