"""The Python face: run_all and what it returns, the resident engine, debugging names, and bench_gpu_time.

Spec: spec/engine.md ("Commands and Python", "Runners"), spec/compat.md (3), spec/source/run-benchmark.md ("Python
API"), spec/source/benchmark-kernel-guide.md (method 2); README.md, docs/engine.md ("Guarantees"),
docs/numbers.md ("One call from Python"), docs/migration.md ("What is the same", "Names for debugging").
Each script runs in a process of its own.
"""

from __future__ import annotations

import pytest

from tests.golden.face import Face, SmallSet, read_traces, spec

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(600)]
RUN_ALL = """
import json, sys, warnings
from flashinfer_bench import Benchmark, BenchmarkConfig, TraceSet

root = sys.argv[1]
quick = dict(warmup_runs=1, iterations=3, num_trials=1)
trace_set = TraceSet.from_path(root)
unsaved = Benchmark(trace_set, BenchmarkConfig.default(**quick, solutions=["right"])).run_all(save_results=False)
found = {"unsaved": [t.solution for t in unsaved.traces["double"]]}
found["on_disk"] = len(list((trace_set.root / "traces").rglob("*.jsonl")))
found["in_memory"] = len(trace_set.traces.get("double", []))

trace_set = TraceSet.from_path(root)
events = []
benchmark = Benchmark(trace_set, BenchmarkConfig(**quick, use_isolated_runner=True))
told = lambda event: events.append(type(event).__name__)
result = benchmark.run_all(dump_traces=True, resume=False, on_event=told, progress=False)
found["statuses"] = {t.solution: t.evaluation.status.value for t in result.traces["double"]}
found["runner"] = {t.evaluation.extra["run"]["runner"] for t in result.traces["double"]}.pop()
found["is_new"] = result is not trace_set
found["same"] = [list(result.definitions), [len(result.workloads["double"]), len(result.solutions["double"])]]
found["input_set_has_them"] = len(trace_set.traces["double"])
found["best"] = trace_set.get_best_trace("double").solution
found["is_its_set"] = benchmark.get_trace_set() is trace_set
found["faults"] = [[f.job.solution.name, f.job.workload.uuid, bool(f.message)] for f in benchmark.faults]
found["events"] = sorted(set(events))
benchmark.close()

again = Benchmark(TraceSet.from_path(root), BenchmarkConfig(**quick, use_isolated_runner=True)).run_all(resume=True)
found["resumed"] = len(again.traces["double"])
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    Benchmark(TraceSet.from_path(root), BenchmarkConfig(**quick, solutions=["for_nothing"])).run_all(save_results=False)
found["warned"] = any("for_nothing" in str(w.message) or "package_that_is_not_there" in str(w.message) for w in told)
print(json.dumps(found))
"""
ENGINE = """
import asyncio, json, sys
from flashinfer_bench import BenchmarkConfig, Engine, EngineLimits, Solution, TraceSet
from flashinfer_bench.errors import ConfigError, EngineClosed, TaskFailed

trace_set = TraceSet.from_path(sys.argv[1])
config = BenchmarkConfig.default(warmup_runs=1, iterations=3, num_trials=1)
found = {}

def make(name, source):
    return Solution(name=name, definition="double", author="m", sources=[{"path": "main.py", "content": source}],
                    spec={"language": "python", "target_hardware": ["cpu", "cuda"], "entry_point": "main.py::run"})

async def judge(engine):
    task = engine.submit("right", submitter="alice", save_results=False)
    return sorted([trace.workload.uuid async for trace in task])

with Engine(trace_set, config, limits=EngineLimits(queue=100)) as engine:
    found["streamed"] = asyncio.run(judge(engine))
    stranger = make("stranger", "def run(x):\\n    return x * 3\\n")
    wrong = engine.submit(stranger, ["w1"], submitter="bob", save_results=False)
    found["stranger"] = [(t.solution, t.workload.uuid, t.evaluation.status.value) for t in wrong.result(timeout_s=300)]
    try:
        engine.submit("nobody")
    except ConfigError:
        found["nobody"] = "ConfigError"
    of_broken = make("on_broken", "def run(x):\\n    return x\\n").model_copy(update={"definition": "broken"})
    faulty = engine.submit(of_broken, save_results=False)
    try:
        faulty.result(timeout_s=300)
    except TaskFailed:
        found["fault"] = "TaskFailed"
    found["state"] = "jobs" in json.loads(engine.state().model_dump_json())
try:
    engine.submit("right")
except EngineClosed:
    found["closed"] = "EngineClosed"
print(json.dumps(found))
"""
DEBUGGING = """
import json, sys, torch
from flashinfer_bench import TraceSet
from flashinfer_bench.bench.evaluators import resolve_evaluator
from flashinfer_bench.bench.evaluators.utils import allocate_outputs, normalize_result
from flashinfer_bench.bench.timing import time_runnable
from flashinfer_bench.bench.utils import gen_inputs, load_safetensors
from flashinfer_bench.compile import BuilderRegistry, BuildError

trace_set = TraceSet.from_path(sys.argv[1])
definition, (first, *_) = trace_set.definitions["double"], trace_set.workloads["double"]
registry = BuilderRegistry.get_instance()
runnable = registry.build(definition, trace_set.get_solution("right"))
stored = load_safetensors(definition, first.workload, trace_set.root)
inputs = gen_inputs(definition, first.workload, "cpu", stored)
reference = registry.build_reference(definition)
found = {
    "value": torch.equal(runnable(*inputs), inputs[0] * 2),
    "keyword": torch.equal(runnable.call_kwargs(x=inputs[0]), inputs[0] * 2),
    "returning": torch.equal(runnable.call_value_returning(*inputs), inputs[0] * 2),
    "reference": torch.equal(normalize_result(definition, reference(*inputs), "cpu")[0], inputs[0] * 2),
    "outputs": [list(output.shape) for output in allocate_outputs(definition, inputs, "cpu")],
    "evaluator": resolve_evaluator(definition).__name__,
    "ms": time_runnable(runnable, inputs, warmup=1, iters=3, device="cpu") > 0,
    "metadata": runnable.metadata is not None,
    "stored": sorted(stored),
}
try:
    registry.build(definition, trace_set.get_solution("compile_error"))
except BuildError:
    found["build_error"] = True
registry.cleanup()
print(json.dumps(found))
"""
GPU_TIME = """
import json, warnings, torch
warnings.simplefilter("ignore")
from flashinfer_bench.testing import bench_gpu_time

q, k = torch.randn(2, 64, 64).unbind()
calls = []
def call(*args, **kwargs):
    calls.append((len(args), sorted(kwargs)))
    return torch.mm(q, k)
median_ms, std_ms = timed = bench_gpu_time(call, args=(q, k), num_iters=5, dry_run_iters=2)
found = {"positive": median_ms > 0 <= std_ms, "method": timed.method, "cache": timed.measurement["cache_state"]}
found["args"] = sorted({str(entry) for entry in calls})
calls.clear()
for more in ("enable_cupti=1", "enable_cupti=0", "cold_l2_cache=1", "rotate_buffers=1", "use_cuda_graph=1"):
    name, value = more.split("=")
    more = {name: value == "1"}
    median_ms, std_ms = bench_gpu_time(call, args=(q, k), kwargs={"alpha": 2}, num_iters=3, dry_run_iters=1, **more)
    found["positive"] &= median_ms > 0
found["kwargs"] = sorted({str(entry) for entry in calls})
print(json.dumps(found))
"""


@pytest.fixture
def small(tmp_path):
    small = SmallSet(tmp_path / "set")
    tensor = spec(["n"], "float32")
    double = "def run(x):\n    return x * 2\n"
    small.definition("double", double, {"x": tensor}, {"y": tensor})
    small.definition(
        "broken", "def run(x):\n    raise ValueError('a broken reference')\n", {"x": tensor}, {"y": tensor}
    )
    import torch

    small.workload("double", "w1", small.stored("double", "w1", {"x": torch.arange(64.0)}))
    small.workload("double", "w2")
    small.workload("broken", "b1")
    small.solution("double", "right", double)
    small.solution("double", "wrong", "def run(x):\n    return x * 3\n")
    small.solution("double", "compile_error", "import package_that_is_not_there_either\n")
    needs = {
        "language": "python",
        "target_hardware": ["cpu"],
        "entry_point": "main.py::run",
        "dependencies": ["package_that_is_not_there"],
    }
    small.solution("double", "for_nothing", double, spec=needs)
    small.solution("broken", "of_broken", double)
    return small


@pytest.fixture
def here(small, shared_cache):
    return Face(shared_cache, small.root.parent)


def test_run_all_returns_a_new_set_with_the_traces_of_this_run(small, here):
    found = here.python(RUN_ALL, small.root)
    assert (found["unsaved"], found["on_disk"], found["in_memory"]) == (["right"] * 2, 0, 2)
    statuses = found["statuses"]
    assert statuses == {"right": statuses["right"], "wrong": "INCORRECT_NUMERICAL", "compile_error": "COMPILE_ERROR"}
    assert statuses["right"] in ("PASSED", "RUNTIME_ERROR")  # the second one on a busy CPU
    assert found["runner"] == "isolated"
    assert (found["is_new"], found["is_its_set"], found["best"]) == (True, True, "right")
    assert found["same"] == [["broken", "double"], [2, 4]] or sorted(found["same"][0]) == ["broken", "double"]
    assert found["input_set_has_them"] == 6
    assert found["faults"] == [["of_broken", "b1", True]]
    assert {"JobFinished", "JobFaulted"} <= set(found["events"])
    assert found["resumed"] == len(read_traces(small.root)) == 6
    assert found["warned"]


def test_an_engine_stays_and_judges_what_is_submitted(small, here):
    found = here.python(ENGINE, small.root)
    assert found["streamed"] == ["w1", "w2"]
    assert found["stranger"] == [["stranger", "w1", "INCORRECT_NUMERICAL"]]
    assert (found["nobody"], found["fault"], found["closed"]) == ("ConfigError", "TaskFailed", "EngineClosed")
    assert found["state"]
    assert read_traces(small.root) == []


def test_names_for_debugging_build_call_and_time_in_the_own_process(small, here):
    found = here.python(DEBUGGING, small.root)
    assert found == {
        "value": True,
        "keyword": True,
        "returning": True,
        "reference": True,
        "outputs": [[64]],
        "evaluator": "DefaultEvaluator",
        "ms": True,
        "metadata": True,
        "stored": ["x"],
        "build_error": True,
    }


def test_bench_gpu_time_gives_median_and_deviation(here):
    found = here.python(GPU_TIME, CUDA_VISIBLE_DEVICES="")
    assert found["positive"] is True
    assert (found["method"], found["cache"]) == ("wall", "warm")
    assert found["args"] == ["(2, [])"]
    assert found["kwargs"] == ["(2, ['alpha'])"]
