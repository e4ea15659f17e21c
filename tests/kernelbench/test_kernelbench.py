"""Tasks in KernelBench's form convert, and right and wrong solutions of them get the right verdict.

`benchmarks/run_kernelbench.py` judges all tasks of tasks.txt; here are six of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.run_kernelbench import TASKS, command, judge_tasks, read_tasks, write_tasks
from flashinfer_bench.base.isolated import run_isolated
from flashinfer_bench.cli.main import cli
from flashinfer_bench.data.kernelbench.block import KernelBenchTask
from flashinfer_bench.data.kernelbench.tasks import KernelBench
from flashinfer_bench.data.problems.folder import find_problems, read_folder
from flashinfer_bench.data.store.drafts import DraftHints, read_draft
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.errors import DataSetError
from tests.kit import make_definition, make_trace, make_workload, write_trace_set

SAMPLE = (5, 11, 12, 17, 21, 29)
HEAD = "import torch\ndef get_inputs():\n    return [torch.rand(4)]\n"
MODEL = "class Model(torch.nn.Module):\n    def forward(self, x):\n        return {}\n"
ON_GPU = "def get_inputs():\n    return [torch.rand(4, device='cuda')]"
REFUSED = {
    "1_draws": (
        MODEL.format("torch.dropout(x, 0.2, True)"),
        "its forward draws random numbers (aten.bernoulli_.float)",
    ),
    "2_text": (MODEL.format("'text'"), "an output is a str, not a tensor or a number"),
    "3_package": ("import transformers_of_nobody", "No module named 'transformers_of_nobody'"),
    "4_nothing": ("", "has no attribute 'Model'"),
    "5_ends": ("import os\nos._exit(3)", "its code ended the process with exit code 3"),
    "6_number": (
        "import random\nclass Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.rate = random.random()\n",
        "Model draws numbers that are no tensors: rate",
    ),
    "7_complex": (MODEL.format("torch.fft.fft(x)"), "at ('outputs', 'output', 'dtype')"),
    "8_reads": (MODEL.format("x if x.sum().item() < 9 else -x"), None),
    "9_own_text": (f"import inspect\n{MODEL.format('x')}\ndef one():\n    pass\ninspect.getsource(one)", None),
    "11_own_run": (
        f"{MODEL.format('run(x)')}def run(x):\n    return -x",
        "it defines run or make_inputs",
    ),
    "10_not_fake": (f"cast = torch.nn.Linear(4, 4).double().float()\n{MODEL.format('cast(x)')}", None),
    "12_cuda": (f"Model = lambda: torch.nn.Linear(4, 4)\n{ON_GPU}", None),
    "13_cuda_weights": (f"Model = lambda: torch.nn.RMSNorm(4, device='cuda')\n{ON_GPU}", None),
    "14_cuda_forward": (MODEL.format("x @ torch.ones(4, device='cuda')") + ON_GPU, None),
    "16_cuda_method": (
        f"{MODEL.format('x.cuda()')}def get_inputs():\n    return [torch.rand(4).cuda(0, non_blocking=True)]",
        None,
    ),
    "15_no_device": (f"import os\nassert not os.environ['CUDA_VISIBLE_DEVICES']\n{MODEL.format('x')}", None),
}


class Model(torch.nn.Module):
    """A model with weights that are drawn, one of them transposed, and a bias that is constant."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))
        self.bias = torch.nn.Parameter(torch.zeros(4))
        self.turned = torch.nn.Parameter(torch.randn(2, 3).t())


@pytest.mark.parametrize(
    ("attributes", "wired"),
    [
        ("scratch = torch.zeros(4); bias = torch.zeros(4)", {"bias": 2}),
        ("scratch = torch.zeros(2, 2); b = torch.nn.Parameter(torch.zeros(4))", {"b": 2}),
        ("w = weight; bias = torch.zeros(4)", {"weight": 1, "w": 1, "bias": 2}),
        ("scratch = torch.zeros(4)", {}),
        ("flat = weight.view(1, 4)", {"weight": 1, "flat": 1}),
        ("own = torch.zeros(2, 2).t()", {}),
        ("w = weight; turned = torch.randn(2, 3).t()", {"weight": 1, "w": 1, "turned": 3}),
        ("scratch = torch.empty(99); made = __import__('time').perf_counter()", {}),
        ("packed = weight + 1", None),
    ],
)
def test_a_tensor_of_a_model_new_is_paired_with_one_input_or_is_its_own(
    tmp_path: Path, attributes: str, wired: dict[str, int] | None
) -> None:
    lines = [f"self.{one}".replace("weight", "self.weight") for one in attributes.split("; ")]
    head = "import torch\nclass ModelNew(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    body = ["self.weight = torch.nn.Parameter(torch.randn(4))" if "weight" in attributes else "pass", *lines]
    (tmp_path / "new.py").write_text(head + "".join(f"        {line}\n" for line in body))
    task = KernelBenchTask({"Model": Model, "get_init_inputs": list}, "float32", inputs=1)
    connected = dict[str, int]()
    task.connect = lambda _, wires: connected.update(wires)  # type: ignore[method-assign]
    if wired is None:
        with pytest.raises(TypeError, match="packed depends on the seed"):
            task.bind_solution(str(tmp_path / "new.py"))
        return
    task.bind_solution(str(tmp_path / "new.py"))
    assert connected == wired


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize(
    ("attributes", "result"),
    [
        ("self.weight = torch.nn.Parameter(torch.randn(4)); self.held = (self.weight,)", "self.held[0]"),
        ("self.inner = torch.compile(Model(), backend='eager')", "self.inner.weight * x"),
        ("self.inner = torch.jit.script(Model())", "self.inner.weight * x"),
        ("self.held = [Model().weight]; self.kind = dict", "torch.mul(self.held[0], x, out=torch.empty(4))"),
        ("self.inner = Model()", "(self.inner.weight * (self.inner.turned.stride() == (1, 3)), None)"),
    ],
)
def test_each_call_computes_with_its_own_weights(tmp_path: Path, attributes: str, result: str) -> None:
    head = "import torch\nclass ModelNew(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    (tmp_path / "new.py").write_text(
        f"{head}        {attributes}\n    def forward(self, x):\n        return {result}\n"
    )
    task = KernelBenchTask({"Model": Model, "get_init_inputs": list}, "float32", inputs=1)
    call, weights = task.bind_solution(str(tmp_path / "new.py")), [torch.rand(4), torch.rand(4)]
    found = [task.flatten(call(torch.ones(4), weight, torch.zeros(4), torch.rand(3, 2))) for weight in weights]
    assert all(torch.equal(*one, weight) for one, weight in zip(found, weights, strict=True))


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with a task, and a solution of it outside a run's folder."""
    chosen = [task for task in read_tasks(TASKS) if task.number == 11]
    write_tasks(tmp_path / "tasks", chosen)
    (tmp_path / "model_new.py").write_text(chosen[0].right)
    return tmp_path / "tasks"


@pytest.mark.cpu
@pytest.mark.slow
def test_right_and_wrong_solutions_of_converted_tasks_get_the_right_verdict(tmp_path: Path) -> None:
    rows = judge_tasks(tmp_path, [task for task in read_tasks(TASKS) if task.number in SAMPLE])
    statuses = {(definition, author): status for definition, author, status, _ in rows}
    assert len(statuses) == 2 * len(SAMPLE)
    assert {status for (_, author), status in statuses.items() if author == "right"} == {"PASSED"}
    assert {status for (_, author), status in statuses.items() if author == "wrong"} == {
        "INCORRECT_NUMERICAL",
        "COMPILE_ERROR",
    }
    assert all("depends on the seed" in log for *_, status, log in rows if status == "COMPILE_ERROR")


@pytest.mark.cpu
def test_a_task_that_cannot_be_carried_over_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "level1").mkdir()
    for name, (text, _) in REFUSED.items():
        (tmp_path / "level1" / f"{name}.py").write_text(HEAD + text)
    found = read_folder(tmp_path, KernelBench())
    reasons = {issue.file.stem: issue.reason for issue in found.issues}
    assert len(found.definitions) == 8
    for name, (_, reason) in REFUSED.items():
        assert (reason is None) == (name not in reasons)
        assert reason is None or reason in reasons[name]


@pytest.mark.cpu
def test_a_task_that_takes_too_long_is_refused_and_the_next_is_inspected() -> None:
    request = {"module": "flashinfer_bench.data.kernelbench.inspection", "block": "", "limit_s": 3}
    request["problems"] = ["import time\ntime.sleep(60)", ""]
    slow, empty = run_isolated("flashinfer_bench.data.problems.inspection", request, limit_s=250)
    assert slow == {"refused": "its code takes longer than 3 s"}
    assert "has no attribute 'KernelBenchTask'" in empty["refused"]


@pytest.mark.cpu
def test_a_model_new_is_a_solution_of_the_task_that_its_name_or_the_user_names(tasks: Path) -> None:
    name = "kernelbench_l1_011_" + next((tasks / "level1").glob("11_*")).stem[3:].lower()
    write_trace_set(tasks, traces=[make_trace(definition=name, workload=make_workload("of_fp32"))])
    found = read_folder(tasks, KernelBench("bf16"))
    assert (list(found.definitions), list(found.traces[name])) == ([name], [])
    assert [(one.severity, one.reason.partition(", ")[0], one.reason[-3:]) for one in found.issues] == [
        ("warning", "traces of workloads that the problems lack", ": 1")
    ]
    assert found.definitions[name].inputs["mix__weight"].dtype == "bfloat16"
    assert found.workloads[name][0].workload.tolerance.max_atol == 1e-2
    assert [item.author for item in found.solutions[name]] == ["right", "wrong"]
    for path in (tasks / "right", tasks / "right/level_1_problem_11_sample_0_kernel.py", tasks.parent / "model_new.py"):
        draft = read_draft(path, found.definitions)
        assert (draft.solution.definition, draft.solution.spec.declared_style) == (name, False)
    plain = {"plain": found.definitions[name].model_copy(update={"tags": []})}
    with pytest.raises(DataSetError, match="ModelNew is for tasks of KernelBench"):
        read_draft(tasks.parent / "model_new.py", plain, DraftHints(definition="plain"))


@pytest.mark.cpu
def test_a_file_that_is_refused_is_named_and_the_others_are_read(tasks: Path) -> None:
    right = tasks / "right/level_1_problem_11_sample_0_kernel.py"
    written = {
        "level1/12_Latin.py": b"# \xe9",
        "level1/13_Both.py": b"class ModelNew: ...\ndef get_inputs(): ...",
        "latin/level_1_problem_11_sample_0_kernel.py": b"# \xe9",
        "prose/level_1_problem_11_sample_0_kernel.py": b"Here is ModelNew:",
        "right/level_1_problem_99_sample_0_kernel.py": right.read_bytes(),
        "a/right/level_1_problem_11_sample_0_kernel.py": right.read_bytes(),
        ".venv/1_Hidden.py": b"def get_inputs(",
    }
    for name, content in written.items():
        (tasks / name).parent.mkdir(parents=True, exist_ok=True)
        (tasks / name).write_bytes(content)
    assert [file.parent.name for file, _ in find_problems(tasks, KernelBench(), [])] == ["level1"] * 2
    found = read_folder(tasks, KernelBench())
    assert [item.author for item in next(iter(found.solutions.values()))] == ["right", "wrong"]
    reasons = {str(issue.file.relative_to(tasks)): issue.reason for issue in found.issues}
    assert len(found.issues) == 6
    assert reasons.keys() == {*written} - {".venv/1_Hidden.py"}


def test_a_task_in_the_folder_of_the_shell_has_its_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "level3").mkdir()
    monkeypatch.chdir(tmp_path / "level3")
    facts = {"arguments": 0, "written": [], "inputs": {}, "outputs": {}}
    ((raw, _),) = KernelBench().make(Path("1_Net.py"), "", facts, "", [])
    assert raw["op_type"] == "kernelbench_l3"
    found = TraceSet(definitions={"kernelbench_l3_001_net": make_definition()})
    file = Path("level_3_problem_1_sample_0_kernel.py")
    file.write_text("class ModelNew: ...")
    ((*_, author),) = KernelBench().name_solutions(found, file)
    assert author == "level3"


def test_the_code_of_tasks_runs_only_if_the_user_trusts_it(tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["run", "--local", str(tasks)], ["convert", str(tasks), "--from", "kernelbench", "--output", "new"]):
        assert cli(words) == 2
        assert "--trust-definitions" in capsys.readouterr().err


@pytest.mark.cpu
def test_run_takes_a_folder_of_tasks_as_a_set(tasks: Path) -> None:
    words = ("--trust-definitions", "--authors", "right", "--quick", "--devices", "cpu")
    done = command("run", "--local", tasks, *words)
    assert (done.returncode, "1 PASSED" in done.stdout) == (0, True), done.stderr
    assert list((tasks / "traces").rglob("*.jsonl"))
