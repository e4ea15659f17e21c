"""References whose `run` takes its inputs in other ways are judged: the judge calls them, and a worker times them."""

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

FORMS = {
    "keywords": "def run(*, b, a):\n    return a - b\n",
    "mixed": "def run(a, /, *, b):\n    return a - b\n",
    "rest": "def run(*rest, b):\n    return rest[0] - b\n",
    "partial": "import functools\nrun = functools.partial(lambda k, b, a: a * k - b, 1)\n",
    "instance": "class Model:\n    def __call__(self, b, a):\n        return a - b\n\nrun = Model()\n",
    "imported": "from torch import sub as run\n",
    "own_setup": "def setup(*given):\n    return {'c': 1}\n\nrun = lambda *given: given[0] - given[1]\n",
}


def test_every_form_of_a_reference_is_judged_and_timed(tmp_path):
    inputs = {"a": "float32[n]", "b": "float32[n]"}
    source = "def run(a, b):\n    return a - b\n"
    root = write_trace_set(
        tmp_path,
        definitions=[make_definition(name, inputs=inputs, reference=text) for name, text in FORMS.items()],
        solutions=[make_solution(f"s_{name}", definition=name, source=source) for name in FORMS],
        workloads=[make_trace(definition=name, workload=make_workload(inputs={}), solution=None) for name in FORMS],
    )
    config = BenchmarkConfig.default(devices=["cpu"], warmup_runs=0, iterations=2, num_trials=1)
    with Benchmark(TraceSet.from_path(root), config) as benchmark:
        judged = benchmark.run_all(save_results=False)
    traces = {name: judged.traces[name][0] for name in FORMS if judged.traces.get(name)}
    assert {name: trace.evaluation.status.value for name, trace in traces.items()} == dict.fromkeys(FORMS, "PASSED")
    assert all(trace.evaluation.performance.reference_latency_ms > 0 for trace in traces.values())
