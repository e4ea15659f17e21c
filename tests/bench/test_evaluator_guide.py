"""The example of docs/evaluators.md judges as the page describes, and far from the solutions."""

import json
import re
from pathlib import Path

import pytest

from flashinfer_bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import Definition, TraceSet
from tests.kit import make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(180)]

CHECKOUT = Path(__file__).parents[2]
GUIDE = (CHECKOUT / "docs" / "evaluators.md").read_text()
HEAD = """\
import os, sys, torch
sys.solution_was_here = True
print("the worker is", os.getpid(), "and has", *[m for m in sys.modules if m == "my_evaluators"])
def run(x):
    return """
"""Code that every solution runs when it is imported."""
SOLUTIONS = {
    "unbiased": "(x * 16 + torch.rand_like(x)).floor().to(torch.int8)\n",
    "slightly_biased": "(x * 16 + torch.rand_like(x) * 0.9).floor().to(torch.int8)\n",
    "always_down": "(x * 16).floor().to(torch.int8)\n",
    "one_too_far": "(x * 16 + torch.rand_like(x)).floor().add(2 * (x == x.max())).to(torch.int8)\n",
}
SPY = """
        import os, sys
        files = [str(getattr(module, "__file__", "")) for module in list(sys.modules.values())]
        context.notes["spy"] = {
            "pid": os.getpid(),
            "solutions": [file for file in files if os.environ["FIB_CACHE_PATH"] in file],
            "mark": hasattr(sys, "solution_was_here"),
        }
        correctness ="""


def find_block(language, containing=""):
    """Return the first code block of the guide in a language that has a text in it."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if containing in block)


def test_the_example_judges_with_its_parameters_and_far_from_the_solutions(tmp_path, monkeypatch):
    example = find_block("python", "EVALUATORS = [")
    (tmp_path / "my_evaluators.py").write_text(example.replace("        correctness =", SPY))
    (tmp_path / "my_config.yaml").write_text(find_block("yaml"))
    definition = Definition.model_validate(json.loads(find_block("json", '"op_type": "stochastic_rounding"')))
    workload = make_workload(axes={"rows": 64}, inputs={})
    root = write_trace_set(
        tmp_path / "set",
        definitions=[definition],
        solutions=[make_solution(name, definition=definition.name, source=HEAD + it) for name, it in SOLUTIONS.items()],
        workloads=[make_trace(definition=definition.name, solution=None, workload=workload)],
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    settings = {"devices": ["cpu"], "iterations": 1, "warmup_runs": 0, "num_trials": 2}
    with Benchmark(TraceSet.from_path(root), BenchmarkConfig.from_yaml("my_config.yaml", **settings)) as benchmark:
        traces = benchmark.run_all(save_results=False).traces[definition.name]
    judged = {trace.solution: trace.evaluation for trace in traces}
    wrong = dict.fromkeys(("always_down", "one_too_far"), "INCORRECT_NUMERICAL")
    passed = dict.fromkeys(("unbiased", "slightly_biased"), "PASSED")
    assert {name: evaluation.status.value for name, evaluation in judged.items()} == passed | wrong
    assert re.search(r"the mean is off by 0\.\d+, 0\.1 is allowed", judged["always_down"].log)
    assert judged["unbiased"].extra["rounding"] == {"allowed": 0.1, "trials": 2}
    for evaluation in judged.values():
        key = evaluation.extra["run"]["fingerprint"]["evaluator"]
        assert re.fullmatch(r"my_evaluators:StochasticRoundingEvaluator [0-9]+ [0-9a-f]{16}", key)
        spied = evaluation.extra["spy"]
        worker, modules = re.search(r"the worker is (\d+) and has(.*)", evaluation.log).groups()
        assert (spied["solutions"], spied["mark"], modules.strip()) == ([], False, "")
        assert int(worker) != spied["pid"]
