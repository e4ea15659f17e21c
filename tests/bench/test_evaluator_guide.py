"""The example of docs/evaluators.md, as it stands there, and an evaluator of an installed package, in a real run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import Definition, TraceSet
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(180)]

GUIDE = (Path(__file__).parents[2] / "docs" / "evaluators.md").read_text()
PATHS = os.pathsep.join([".", str(Path(__file__).parents[2])])
"""Where a reader's own module lies, and this package."""
FLAGS = ["--devices", "cpu", "--iterations", "1", "--warmup-runs", "0", "--num-trials", "2", "--format", "json"]
MARK = """\
import os, sys
sys.solution_was_here = True
print("the worker is", os.getpid(), "and has", *[m for m in ("my_evaluators", "spy_evaluators") if m in sys.modules])
"""
"""What every solution does when it is imported."""
HEAD = "import torch\n\ndef run(x):\n    "
SOLUTIONS = {
    "unbiased": HEAD + "return (x * 16 + torch.rand_like(x)).floor().to(torch.int8)\n",
    "slightly_biased": HEAD + "return (x * 16 + torch.rand_like(x) * 0.9).floor().to(torch.int8)\n",
    "always_down": HEAD + "return (x * 16).floor().to(torch.int8)\n",
    "one_too_far": HEAD + "return (x * 16 + torch.rand_like(x)).floor().add(2 * (x == x.max())).to(torch.int8)\n",
}
SPY = """
import os, sys
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator

class SpyEvaluator(DefaultEvaluator):
    @classmethod
    def can_evaluate(cls, definition):
        return definition.op_type in ("stochastic_rounding", "spied")

    @classmethod
    def check_correctness(cls, *arguments, context):
        verdict = super().check_correctness(*arguments, context=context)
        files = [str(getattr(module, "__file__", "")) for module in list(sys.modules.values())]
        context.notes["spy"] = {
            "pid": os.getpid(),
            "solutions": [file for file in files if "/artifacts/" in file or os.environ["FIB_CACHE_PATH"] in file],
            "mark": hasattr(sys, "solution_was_here"),
        }
        return verdict
"""


def find_block(language, containing=""):
    """Return the first code block of the guide in a language that has a text in it."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if containing in block)


def run_printed(command, folder, *more):
    """Run a command of the guide in a folder."""
    printed = next(line for line in GUIDE.splitlines() if line.startswith(f"PYTHONPATH=. flashinfer-bench {command}"))
    argv = [sys.executable, "-m", "flashinfer_bench", *printed.split()[2:], *more]
    environment = {**os.environ, "FIB_CACHE_PATH": str(folder / "cache"), "PYTHONPATH": PATHS}
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=150, check=False)


def test_the_printed_files_and_commands_reach_a_verdict_in_an_empty_folder(tmp_path):
    files = re.findall(r"^`([^`\n]+)`:\n\n```\w+\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    for name, text in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert "StochasticRoundingEvaluator" in run_printed("list", tmp_path).stdout
    done = run_printed("run", tmp_path, "--devices", "cpu", "--iterations", "2", "--num-trials", "1")
    assert done.returncode == 0, done.stderr
    (trace,) = TraceSet.from_path(tmp_path / "SET").traces["stochastic_rounding_n256"]
    assert trace.is_successful()
    assert (tmp_path / "SET/traces/me/stochastic_rounding/stochastic_rounding_n256.jsonl").is_file()


def write_everything(folder):
    """Write what a reader of the guide has: a module, a configuration, a set; and a package that is installed."""
    (folder / "my_evaluators.py").write_text(find_block("python", "EVALUATORS = ["))
    (folder / "my_config.yaml").write_text(find_block("yaml"))
    (folder / "spy_evaluators.py").write_text(SPY)
    info = folder / "spy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[flashinfer_bench.evaluators]\nspy = spy_evaluators:SpyEvaluator\n")
    rounding = Definition.model_validate(json.loads(find_block("json", '"op_type": "stochastic_rounding"')))
    spied = make_definition("spied", op_type="spied")
    solutions = [make_solution(name, definition=rounding.name, source=MARK + text) for name, text in SOLUTIONS.items()]
    solutions.append(make_solution("doubles", definition="spied", source=MARK + "def run(x):\n    return x * 2\n"))
    workloads = [
        make_trace(definition=rounding.name, solution=None, workload=make_workload(axes={"rows": 64}, inputs={})),
        make_trace(definition="spied", solution=None, workload=make_workload("w1")),
    ]
    return write_trace_set(folder / "set", definitions=[rounding, spied], solutions=solutions, workloads=workloads)


PERSISTENT: list[str] = []
ISOLATED = ["--use-isolated-runner"]


@pytest.fixture(scope="module", params=[PERSISTENT, ISOLATED], ids=["persistent", "isolated"])
def finished(request, tmp_path_factory):
    """Run the guide's command and return the folder, the traces by solution, and the runner's flag."""
    folder = tmp_path_factory.mktemp("guide")
    root = write_everything(folder)
    command = next(line for line in GUIDE.splitlines() if line.startswith("PYTHONPATH=. flashinfer-bench run"))
    flags = command.replace("SET", str(root)).split()[2:]
    argv = [sys.executable, "-m", "flashinfer_bench", *flags, *FLAGS, *request.param]
    environment = {**os.environ, "FIB_CACHE_PATH": str(folder / "cache"), "PYTHONPATH": PATHS}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    traces = TraceSet.from_path(root).traces
    return folder, {trace.solution: trace.evaluation for group in traces.values() for trace in group}


def test_the_example_judges_with_its_parameters_from_the_configuration(finished):
    _, evaluations = finished
    statuses = {name: evaluations[name].status.value for name in SOLUTIONS}
    wrong = dict.fromkeys(("always_down", "one_too_far"), "INCORRECT_NUMERICAL")
    assert statuses == {"unbiased": "PASSED", "slightly_biased": "PASSED", **wrong}
    assert 0.02 < evaluations["slightly_biased"].correctness.extra["bias"] < 0.1
    assert re.search(r"the mean is off by 0\.\d+, 0\.1 is allowed", evaluations["always_down"].log)
    assert evaluations["unbiased"].extra["rounding"] == {"allowed": 0.1, "trials": 2}


def test_the_trace_says_who_judged_and_the_configuration_comes_before_entry_points(finished):
    _, evaluations = finished
    names = {name: evaluation.extra["evaluator"] for name, evaluation in evaluations.items()}
    assert names == {**dict.fromkeys(SOLUTIONS, "StochasticRoundingEvaluator"), "doubles": "SpyEvaluator"}
    marks = evaluations["unbiased"].extra["run"]["fingerprint"]["evaluator"]
    assert re.fullmatch(r"my_evaluators:StochasticRoundingEvaluator [0-9]+ [0-9a-f]{16}", marks)


def test_no_solution_code_is_in_the_process_that_judges_nor_the_judge_in_a_worker(finished):
    _, evaluations = finished
    spied = evaluations["doubles"].extra["spy"]
    assert (spied["solutions"], spied["mark"]) == ([], False)
    for evaluation in evaluations.values():
        worker, modules = re.search(r"the worker is (\d+) and has(.*)", evaluation.log).groups()
        assert int(worker) != spied["pid"]
        assert modules.strip() == ""


@pytest.mark.parametrize("finished", [PERSISTENT], ids=["persistent"], indirect=True)
def test_an_edited_evaluator_judges_again_and_the_others_do_not(finished, monkeypatch):
    folder, _ = finished
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    module = folder / "my_evaluators.py"
    module.write_text(module.read_text().replace("0.02}", "0.5}"))
    settings = {"devices": ["cpu"], "iterations": 1, "warmup_runs": 0, "num_trials": 2}
    config = BenchmarkConfig.from_yaml(folder / "my_config.yaml", **settings)
    plan = Benchmark(TraceSet.from_path(folder / "set"), config).plan(resume=True)
    assert plan.redone_reasons == {"evaluator changed": len(SOLUTIONS)}
    assert plan.resumed == 1
