"""Problems in GPU MODE's form convert, and right and wrong submissions get the right verdict."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest
import torch

from flashinfer_bench import TraceSet
from flashinfer_bench.bench.evaluators.own_check import OwnCheckEvaluator
from flashinfer_bench.cli.main import cli
from flashinfer_bench.data.gpumode.block import GpuModeProblem
from flashinfer_bench.data.gpumode.problems import GpuMode, read_tolerance
from flashinfer_bench.data.problems.folder import read_folder
from flashinfer_bench.data.store.drafts import DraftHints, read_draft
from flashinfer_bench.errors import DataSetError
from tests.gpumode.small_problems import CHECK, HEAD, PROBLEMS, write_problems

QUICKLY = (
    "--devices",
    "cpu",
    "--no-profile-baseline",
    "--iterations",
    "1",
    "--warmup-runs",
    "0",
    "--num-trials",
    "2",
    "--time-budget-s",
    "1",
)
PLAIN = PROBLEMS["axpy_py"]
REFUSED = {
    "several": (PLAIN._replace(further={"multi_gpu": True}), "it is for several GPUs"),
    "cpp": (PLAIN._replace(further={"lang": "cu"}), "lang: Input should be 'py'"),
    "rank": (PLAIN._replace(further={"ranking_by": "best"}), "ranking_by: Input should be 'last', 'mean' or 'geom'"),
    "nothing": (PLAIN._replace(benchmarks=[]), "benchmarks: List should have at least 1 item"),
    "unchecked": (PLAIN._replace(check=""), "its reference has no check_implementation"),
    "alike": (PLAIN._replace(generate="return {'a-b': draw(seed, n), 'a_b': draw(seed, n)}"), "make one name"),
    "ragged": (PLAIN._replace(generate="return draw(seed, n + seed % 2)"), "sizes of its data depend on the seed"),
    "module": (PLAIN._replace(generate="return torch.nn.Linear(n, n)"), "data is a Linear with tensors"),
    "nested": (
        PLAIN._replace(generate="x = [type('Outer', (), {'__slots__': 'x'})()]; x[0].x = [draw(seed, n)]; return x"),
        "data_0 is a Outer with tensors",
    ),
    "absent": (PLAIN._replace(head="import aiter_of_nobody\n" + HEAD), "No module named 'aiter_of_nobody'"),
    "ends": (PLAIN._replace(head="import os\nos._exit(3)"), "its code ended the process with exit code 3"),
    "no_case": (PLAIN._replace(tests=[{"m": 3}]), "generate_input() got an unexpected keyword argument 'm'"),
}


@pytest.mark.cpu
@pytest.mark.slow
def test_right_and_wrong_submissions_of_converted_problems_get_the_right_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(name: str, *words: str) -> Any:
        cli([*name.split(), "--local", str(tmp_path / "set"), *words, "--format", "json"])
        return json.loads(capsys.readouterr().out)

    write_problems(tmp_path / "problems")
    source, target = str(tmp_path / "problems"), str(tmp_path / "set")
    assert cli(["convert", source, "--from", "gpumode", "--output", target, "--trust-definitions"]) == 0
    assert capsys.readouterr().err == ""
    jobs = command("run", *QUICKLY)["jobs"]
    found = {(job["solution"].split("_")[-2], job["status"]) for job in jobs}
    assert found == {("correct", "PASSED"), ("wrong", "INCORRECT_NUMERICAL")}
    assert len({job["solution"] for job in jobs}) == 2 * sum(one.definitions for one in PROBLEMS.values())
    trace_set = TraceSet.from_path(target)
    timed = {line.workload.uuid for lines in trace_set.workloads.values() for line in lines if line.workload.timed}
    passed = [job for job in jobs if job["status"] == "PASSED"]
    assert {bool(job["latency_ms"]) == (job["workload"] in timed) for job in passed} == {True}
    assert 0 < sum(job["workload"] in timed for job in passed) < len(passed)
    assert command("run", *QUICKLY, "--resume")["jobs"] == []  # a workload that is not timed lacks no time
    assert command("validate")["issues"] == []
    scores = {row["solution"]: row["ranked_ms"] for row in command("report summary")["rows"]}
    times = {
        name: [job["latency_ms"] for job in passed if job["solution"] == name and job["latency_ms"]] for name in scores
    }
    assert scores["axpy_py_correct_one"] == pytest.approx(geometric_mean(times["axpy_py_correct_one"]))
    assert scores["out_of_place_correct_one"] == times["out_of_place_correct_one"][-1]
    assert scores["out_of_place_wrong_one"] is None


@pytest.mark.cpu
def test_a_problem_that_cannot_be_carried_over_is_named_with_the_reason(tmp_path: Path) -> None:
    write_problems(tmp_path, {"good": PLAIN, **{name: problem for name, (problem, _) in REFUSED.items()}})
    objects = PLAIN._replace(generate="return draw(seed, n, n), draw(seed, n), [object()]", reference="return data[1]")
    moved = PLAIN._replace(reference="return torch.nn.LayerNorm(len(data[1])).to(data[0].device)(data[1])")
    write_problems(tmp_path / "more", {"objects": objects, "no_case": moved})
    found = read_folder(tmp_path, GpuMode())
    reasons = {issue.file.parent.name: issue.text for issue in found.issues if issue.file.name == "task.yml"}
    assert list(found.definitions) == ["good", "objects", "second_no_case"]
    assert {name: reason for name, (_, reason) in REFUSED.items() if reason not in reasons[name]} == {}


@pytest.mark.cpu
def test_cases_are_one_definition_only_if_their_objects_have_the_same_state(tmp_path: Path) -> None:
    numbers = {
        "[object(), draw, torch.float32, Slots(5)]": 1,
        "Slots(scale)": 2,
        "Slots([Slots({'scale': scale})])": 2,
        "(lambda: scale)": 4,
        "Slots(one for one in [scale])": 4,
    }
    tests, benchmarks = ([{"n": n, "scale": scale, "seed": 1} for n in (4, 8)] for scale in (2, 3))
    problem = PLAIN._replace(
        arguments="n: int, scale: int, seed: int",
        head=f"{HEAD}\nclass Slots:\n    __slots__ = 'x'\n    def __init__(self, x):\n        self.x = x\n",
        reference="return data[0] + 1",
        tests=tests,
        benchmarks=benchmarks,
    )
    changed = {f"p{at}": problem._replace(generate=f"return draw(seed, n), {text}") for at, text in enumerate(numbers)}
    write_problems(tmp_path, changed)
    owners = [name.partition("_")[0] for name in read_folder(tmp_path, GpuMode()).definitions]
    assert {text: owners.count(f"p{at}") for at, text in enumerate(numbers)} == numbers


@pytest.mark.cpu
def test_a_problem_is_run_only_if_trusted_and_its_submission_is_a_draft(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_problems(tmp_path / "problems", {"axpy_py": PLAIN._replace(further={"gpu": ["H100"]})})
    assert cli(["convert", str(tmp_path / "problems"), "--from", "gpumode", "--output", str(tmp_path / "set")]) == 2
    assert "its code" not in capsys.readouterr().out
    found = read_folder(tmp_path / "problems", GpuMode())
    assert [issue.reason for issue in found.issues] == ["unknown key, kept without effect; did you mean 'gpus'?"]
    (definition,) = found.definitions.values()
    assert {"problem:axpy_py", "ranking:last", "set:first"} <= {*definition.tags}
    assert (definition.description or "").endswith("Public seeds, without effect: 1, 2, 3")
    submission = tmp_path / "mine.py"
    submission.write_text("#!POPCORN leaderboard axpy-py\ndef custom_kernel(data):\n    return 3 * data[0] + data[1]\n")
    draft = read_draft(submission, {"mine": definition, **found.definitions}, DraftHints())
    assert draft.solution.definition == "axpy_py"
    assert draft.solution.spec.entry_point == "gpumode_entry.py::run"
    other = definition.model_copy(update={"tags": []})
    with pytest.raises(DataSetError, match="custom_kernel is for problems of GPU MODE, and axpy_py is none"):
        read_draft(submission, {"axpy_py": other}, DraftHints())


def make_problem(check: str, head: str = "") -> GpuModeProblem:
    """Return a problem with one tensor as data, whose reference doubles it."""
    text = f"{head}\nimport torch\ndef generate_input(n):\n    return torch.empty(n)\n"
    text += f"def ref_kernel(data):\n    return 2 * data\ndef check_implementation(data, output):\n    {check}\n"
    names = {"inputs": {"data": "float32"}, "outputs": {"output": "float32"}, "orders": {}, "choices": {}}
    problem = GpuModeProblem({"reference": text}, {"n": 4}, **names)
    problem.is_cpu = True
    return problem


@pytest.mark.parametrize(
    ("raised", "is_of_device"),
    [
        ("RuntimeError('sizes differ')", False),
        ("ValueError('CUDA error: in a text')", False),
        ("NameError('a mistake of the check')", False),
        ("MemoryError", True),
        ("RuntimeError('CUDA error: an illegal memory access')", True),
        ("torch.OutOfMemoryError('CUDA out of memory')", True),
    ],
)
def test_outputs_are_not_wrong_if_the_device_of_their_check_fails(raised: str, is_of_device: bool) -> None:
    problem, values = make_problem(f"raise {raised}"), [torch.ones(4)]
    if is_of_device:
        with pytest.raises((RuntimeError, MemoryError)):
            problem.check_outputs(values, values)
    else:
        assert "check_implementation raises" in problem.check_outputs(values, values)


@pytest.mark.parametrize(
    "kernel",
    [
        "torch.full((4,), count())",
        "torch.full((4,), count(), device='cuda').cuda(torch.device('cuda')).cuda(non_blocking=True)",
        "torch.full((4,), count() * (data.device.type == 'cuda'), device=torch.device('cuda:0'))",
        "torch.cuda.synchronize() or torch.full((4,), count(), device=torch.cuda.current_device())",
        "utils.full(count())",
        "torch.full((4,), count() * isinstance(torch.Generator('cuda'), torch.Generator))",
        "torch.compile(lambda x: x ** 0 * torch.ones(4, device='cuda'), backend='eager', fullgraph=True)(data)",
    ],
)
def test_on_a_cpu_the_device_cuda_of_reference_and_submission_is_the_cpu(tmp_path: Path, kernel: str) -> None:
    problem, path = make_problem("return ''"), tmp_path / "mine.py"
    problem.files["utils"] = "import torch\ndef full(value):\n    return torch.full((4,), value, device='cuda')\n"
    head = "import torch\nimport utils\ndef count():\n    return 1.0 + torch._C._len_torch_function_stack()\n"
    path.write_text(f"{head}def custom_kernel(data):\n    return {kernel}\n")
    problem.files["reference"] += f"{head}def ref_kernel(data):\n    return {kernel}\n"
    found = [run(torch.ones(4))[0].tolist() for run in (problem.run, problem.bind_solution(str(path)))]
    assert found == [[1] * 4] * 2


@pytest.mark.parametrize(
    ("reference", "value", "is_right"),
    [("2 * data", 1.0, True), ("2 * data", float("nan"), False), ("data / data", float("nan"), True)],
)
def test_a_nan_that_a_check_overlooks_is_wrong_unless_the_reference_has_one(
    reference: str, value: float, is_right: bool
) -> None:
    problem = make_problem("return not (output > 9).any(), 'large'")
    problem.files["reference"] = problem.files["reference"].replace("2 * data", reference)
    assert (problem.check_outputs([torch.zeros(4)], [torch.full((4,), value)]) == "") == is_right


def test_all_processes_have_the_same_other_values() -> None:
    problem, drawn = make_problem("return ''"), set[str]()
    problem.files["reference"] += "def generate_input(n, seed):\n    return torch.empty(n), str(seed)\n"
    problem.form["inputs"] = {"data_0": "float32"}
    for _ in range(2):
        problem.others = None
        drawn.add(problem.make_data([torch.ones(4)])[1])
    assert len(drawn) == 1


def test_a_few_seeds_are_small() -> None:
    problem = make_problem("return ''")
    problem.files["reference"] += "def generate_input(n, seed):\n    return torch.full((n,), float(seed))\n"
    seeds = [float(problem.make_inputs({"n": 4})["data"][0]) for _ in range(400)]
    assert 15 < sum(seed < 4096 for seed in seeds) < 100  # a table of half of the results would decide the median


@pytest.mark.parametrize(
    ("dtype", "kernel", "expected"),
    [
        ("int8", "torch.tensor([[-5, 127], [128, -130]])", "int8 [[-5, 127], [-64, 62]]"),
        ("int64", "torch.tensor([[-5, 127], [128, 0]], dtype=torch.int16)", "int64 [[-5, 127], [128, 0]]"),
        ("float32", "None", "None"),
        ("float32", "3.0", "3.0"),
    ],
)
def test_an_output_gets_the_dtype_of_the_definition_if_it_holds_the_values(
    tmp_path: Path, dtype: str, kernel: str, expected: str
) -> None:
    problem, path = make_problem("return ''"), tmp_path / "mine.py"
    problem.form |= {"outputs": {"output": dtype}, "orders": {"output": [1, 0]}}
    path.write_text(f"import torch\ndef custom_kernel(data):\n    return {kernel}\n")
    (made,) = problem.bind_solution(str(path))(torch.ones(4))
    assert expected == (f"{made.dtype} {made.T.tolist()}"[6:] if isinstance(made, torch.Tensor) else str(made))


def test_the_own_check_needs_no_expected_outputs() -> None:
    assert not OwnCheckEvaluator.needs_expected


@pytest.mark.cpu
def test_only_submissions_become_solutions_and_each_refused_file_is_named(tmp_path: Path) -> None:
    write_problems(tmp_path, {"good": PLAIN})
    folder, text = tmp_path / "first/good", "def custom_kernel(data):\n    return data[0]\n"
    (folder / "eval.py").write_text("def custom_kernel(data):\n    return data\n")
    (folder / "judge.py").write_text("from submission import custom_kernel\n")
    written = {
        "a/same/x.py": text,
        "b/same/x.py": text,
        "broken/x.py": text + "return 1 +\n",
        "latin/x.py": "# \xe9",
        "prose/x.py": "Here is def custom_kernel(data):",
        ".venv/x.py": text,
        "b/same/y:y.py": text,
    }
    for name, content in written.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode("latin-1"))
    found = read_folder(tmp_path, GpuMode())
    names = [item.name for item in found.solutions["good"]]
    assert names == ["good_broken_x", "good_same_x", "good_correct_one", "good_wrong_one"]
    reasons = {str(issue.file.relative_to(folder)): issue.reason for issue in found.issues}
    assert reasons.keys() == {"b/same/x.py", "b/same/y:y.py", "latin/x.py"}
    assert "is good_same_x already" in reasons["b/same/x.py"]


def test_the_tolerance_comes_from_the_check_of_the_reference() -> None:
    found = read_tolerance(CHECK)
    assert found == {"max_atol": 1e-4, "max_rtol": 1e-3, "required_matched_ratio": 1.0}
    assert read_tolerance(CHECK.replace("rtol=1e-3, atol=1e-4", ""))["max_atol"] == 1e-8
    assert read_tolerance(CHECK.replace("1e-3", "RTOL")) is None
    assert read_tolerance("def check_implementation(data, output):\n    return True, ''\n") is None
