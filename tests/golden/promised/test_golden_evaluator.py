"""An evaluator of one's own, with the four documented methods, told to a run in each of the three ways.

Spec: spec/engine.md ("Evaluators"), spec/source/run-benchmark.md ("Custom evaluators"); docs/evaluators.md ("The four
methods", "Parameters", "Register an evaluator", "When it fails", "Resuming").
"""

from __future__ import annotations

import json

import pytest

from tests.golden.face import QUICK, Face, SmallSet, assert_subset, read_traces, spec

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(600)]
MODULE = '''
"""Takes op type parity: an output is right where it has the parity of what is expected."""

from flashinfer_bench.bench.evaluators import default
from flashinfer_bench.bench.evaluators.evaluator import Accepted, Evaluator, Rejected
from flashinfer_bench.data import Correctness, EvaluationStatus


class ParityEvaluator(Evaluator):
    """Takes op type parity."""

    @classmethod
    def can_evaluate(cls, definition):
        return definition.op_type == "parity"

    @classmethod
    def build_baseline(cls, definition, workload, cfg, device, *, context):
        return default.build_baseline(definition, workload, cfg, device, context=context)

    @classmethod
    def check_correctness(cls, definition, sol_runnable, inputs, ref_outputs, cfg, *, context):
        allowed = cfg.extra.get("parity_allowed", 0)
        wrong = 0
        for trial_inputs, expected in zip(inputs, ref_outputs, strict=True):
            (got,) = sol_runnable(*trial_inputs)
            wrong += int(((got - expected[0]) % 2 != 0).sum())
        context.notes["parity"] = {"allowed": allowed}
        correctness = Correctness(max_absolute_error=wrong, extra={"wrong": wrong})
        if wrong > allowed:
            return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, f"{wrong} of the wrong parity", correctness)
        return Accepted(correctness)

    @classmethod
    def eval_performance(cls, definition, sol_runnable, inputs, ref_mean_latency_ms, cfg, *, context):
        usual = default.DefaultEvaluator.eval_performance
        return usual(definition, sol_runnable, inputs, ref_mean_latency_ms, cfg, context=context)
'''
OFFER = "\n\nEVALUATORS = [ParityEvaluator]\n"
APPEND = (
    "\n\nfrom flashinfer_bench.bench.evaluators.registry import _EVALUATORS\n\n_EVALUATORS.append(ParityEvaluator)\n"
)
SCRIPT = """
import json, sys
import parity_appended
from flashinfer_bench import Benchmark, BenchmarkConfig, TraceSet

config = BenchmarkConfig.default(warmup_runs=1, iterations=3, num_trials=1)
result = Benchmark(TraceSet.from_path(sys.argv[1]), config).run_all(save_results=False)
told = {t.solution: t.evaluation for t in result.traces["parity"]}
print(json.dumps({name: (found.status.value, found.extra["evaluator"]) for name, found in told.items()}))
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    small = SmallSet(tmp_path_factory.mktemp("evaluator") / "set")
    tensor = spec(["n"], "int32")
    small.definition("parity", "def run(x):\n    return x * 1\n", {"x": tensor}, {"y": tensor}, op_type="parity")
    small.workload("parity", "w1")
    small.solution("parity", "right", "def run(x):\n    return x + 2\n")
    small.solution("parity", "wrong", "def run(x):\n    y = x * 1\n    y[:3] += 1\n    return y\n")
    for name, end in {"parity_offered": OFFER, "parity_appended": APPEND, "parity_installed": OFFER}.items():
        (small.root.parent / f"{name}.py").write_text(MODULE + end)
    return small


@pytest.fixture(scope="module")
def here(small, shared_cache):
    face = Face(shared_cache, small.root.parent)
    face.variables["PYTHONPATH"] += f":{small.root.parent}"
    return face


WANTED = {"right": ("PASSED", "ParityEvaluator"), "wrong": ("INCORRECT_NUMERICAL", "ParityEvaluator")}


def verdicts(small):
    evaluations = {trace["solution"]: trace["evaluation"] for trace in read_traces(small.root)}
    return {name: (found["status"], found["extra"]["evaluator"]) for name, found in evaluations.items()}


def test_a_module_of_the_configuration_judges(small, here):
    (small.root.parent / "config.yaml").write_text(
        json.dumps(
            {"evaluator_modules": ["parity_offered"], "op_type_config": {"parity": {"extra": {"parity_allowed": 1}}}}
        )
    )
    words = ("--local", small.root, "--config", small.root.parent / "config.yaml")
    listed = here("list", "--evaluators", *words, "--format", "json").json["definitions"][0]["evaluator"]
    assert_subset({"name": "ParityEvaluator", "module": "parity_offered", "why": "Takes op type parity."}, listed)
    done = here("run", *words, *QUICK, "--format", "json")
    assert done.code == 0, done
    assert verdicts(small) == WANTED
    wrong = next(trace["evaluation"] for trace in read_traces(small.root) if trace["solution"] == "wrong")
    assert "3 of the wrong parity" in wrong["log"]
    assert wrong["correctness"]["max_absolute_error"] == 3
    assert wrong["extra"]["parity"] == {"allowed": 1}
    assert here("run", *words, *QUICK, "--resume", "--format", "json").json["plan"]["jobs"] == 0


def test_a_class_that_a_script_appends_to_the_registry_judges(small, here):
    found = here.python(SCRIPT, small.root)
    assert {name: tuple(entry) for name, entry in found.items()} == WANTED


def test_an_installed_package_judges_by_its_entry_point(small, here):
    folder = small.root.parent / "parity_package-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: parity-package\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[flashinfer_bench.evaluators]\nparity = parity_installed\n")
    done = here("list", "--evaluators", "--local", small.root, "--format", "json")
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    evaluator = done.json["definitions"][0]["evaluator"]
    assert_subset({"name": "ParityEvaluator", "module": "parity_installed"}, evaluator)


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("no_such_module", None, "no_such_module"),
        ("lacks_a_method", MODULE.replace("def eval_performance", "def _eval") + OFFER, "eval_performance"),
        ("offers_nothing", "x = 1\n", "EVALUATORS"),
        ("misspelt", MODULE.replace("def check_correctness", "def check_corectness") + OFFER, "check_correctness"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_misuse(small, here, name, text, part):
    if text is not None:
        (small.root.parent / f"{name}.py").write_text(text)
    done = here("run", "--local", small.root, "--evaluator-modules", name, "--no-save-results")
    assert (done.code, part in done.text) == (2, True), done
