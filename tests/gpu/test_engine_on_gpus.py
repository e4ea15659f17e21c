"""The engine on real GPUs: Triton, both runners, several devices, kernels that break their context.

Run by hand where there are GPUs: python -m pytest -m gpu
"""

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished, JobStarted, Notice, RunStarted
from flashinfer_bench.bench.runner.device_lock import lock_device
from flashinfer_bench.data import TraceSet
from flashinfer_bench.testing import bench_gpu_time
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.processes import marked

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(300)]

BUNDLED = Path(__file__).parents[2] / "flashinfer-trace"
OUT_OF_BOUNDS = """
import torch
def run(x, y):
    y[torch.tensor([10**9], device=x.device)] = 1
"""


def run(trace_set, **overrides):
    """Run a set with few iterations; return its finished jobs and check that no process is left."""
    benchmark = Benchmark(trace_set, BenchmarkConfig.default(warmup_runs=2, iterations=10, num_trials=1, **overrides))
    with marked() as alive:
        events = list(benchmark.run(benchmark.plan(), save_results=False))
        assert not alive()
    assert not benchmark.faults
    return [event for event in events if isinstance(event, JobFinished)]


@pytest.mark.parametrize("isolated", [False, True], ids=["persistent", "isolated"])
def test_bundled_triton_solutions_pass(isolated):
    trace_set = TraceSet.from_path(BUNDLED)
    jobs = run(trace_set, authors=["triton"], devices=["0"], use_isolated_runner=isolated)
    assert jobs
    assert {job.trace.evaluation.status.value for job in jobs} == {"PASSED"}
    assert {job.trace.evaluation.extra["measurement"]["method"] for job in jobs} == {"cupti"}


def write_set(root, *, workloads=4, **sources):
    write_trace_set(
        root,
        definitions=[make_definition()],
        solutions=[make_solution(name, source=source) for name, source in sources.items()],
        workloads=[
            make_trace(workload=make_workload(f"w{index}", axes={"n": 64 + index}), solution=None)
            for index in range(workloads)
        ],
    )
    return TraceSet.from_path(root)


def test_a_kernel_that_breaks_its_context_fails_alone(tmp_path):
    honest = "def run(x, y):\n    y.copy_(x * 2)\n"
    jobs = run(write_set(tmp_path, a_broken=OUT_OF_BOUNDS, honest=honest), devices=["0"])
    found = {(job.job.solution.name, job.trace.evaluation.status.value) for job in jobs}
    assert found == {("a_broken", "RUNTIME_ERROR"), ("honest", "PASSED")}


def test_outputs_on_the_wrong_device_are_refused(tmp_path):
    jobs = run(write_set(tmp_path, on_cpu="def run(x):\n    return (x * 2).cpu()\n", workloads=1), devices=["0"])
    assert jobs[0].trace.evaluation.status.value == "INCORRECT_DTYPE"


def test_the_best_of_each_workload_is_confirmed(tmp_path):
    quick, slow = "def run(x, y):\n    y.copy_(x * 2)\n", "def run(x, y):\n    y.copy_(x.cos().acos() * 0 + x * 2)\n"
    jobs = run(write_set(tmp_path, quick=quick, slow=slow), devices=["0"])
    levels = [(job.job.solution.name, job.trace.evaluation.extra["measurement"]["assurance"]) for job in jobs]
    assert sorted(levels) == [("quick", "full")] * 4 + [("quick", "standard")] * 4 + [("slow", "standard")] * 4
    (alone,) = run(write_set(tmp_path / "alone", workloads=1, quick=quick), devices=["0"])
    assert alone.trace.evaluation.extra["measurement"]["assurance"] == "full"


@pytest.mark.gpu(count=2)
def test_one_solution_on_two_gpus_uses_both(tmp_path):
    jobs = run(write_set(tmp_path, honest="def run(x, y):\n    y.copy_(x * 2)\n", workloads=16))
    assert len(jobs) == 16
    assert len({job.device.uuid for job in jobs}) >= 2


def test_a_run_waits_for_a_gpu_that_another_holds(tmp_path):
    trace_set = write_set(tmp_path, honest="def run(x, y):\n    y.copy_(x * 2)\n", workloads=1)
    benchmark = Benchmark(trace_set, BenchmarkConfig.default(devices=["0"], num_trials=1))
    with ExitStack() as other_run:
        list(lock_device(benchmark.machine.devices[0], other_run))
        seen = []
        for event in benchmark.run(benchmark.plan(), save_results=False):
            seen.append(type(event))
            if isinstance(event, Notice):
                assert "in use by another run" in event.message
                other_run.close()
    assert seen == [RunStarted, Notice, JobStarted, JobFinished]


@pytest.mark.parametrize("style", ["value", "dps"])
def test_outputs_of_timed_calls_lie_in_several_places(tmp_path, style):
    """The solution prints in how many places it has written so far."""
    seen = "    SEEN.add(y.data_ptr())\n    print('PLACES', len(SEEN))\n"
    if style == "dps":
        source = f"import torch\nSEEN = set()\ndef run(x, y):\n    torch.mul(x, 2, out=y)\n{seen}"
    else:
        source = f"SEEN = set()\ndef run(x):\n    y = x * 2\n{seen}    return y\n"
    solution = make_solution("places", source=source, destination_passing_style=style == "dps")
    write_trace_set(
        tmp_path,
        definitions=[make_definition()],
        solutions=[solution],
        workloads=[make_trace(workload=make_workload("w", axes={"n": 1 << 20}), solution=None)],
    )
    (job,) = run(TraceSet.from_path(tmp_path), devices=["0"], profile_baseline=False)
    assert job.trace.evaluation.status.value == "PASSED"
    places = [int(line.split()[1]) for line in job.trace.evaluation.log.splitlines() if line.startswith("PLACES ")]
    assert max(places) > 2


def test_shared_memory_is_as_fast_as_memory_of_ones_own(tmp_path):
    """Rows in random order, over more memory than small pages reach, in an arena of an odd size."""
    rows, width = 3_000_007, 96
    source = "import torch\ndef run(x, order):\n    return torch.index_select(x, 0, order)\n"
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    save_file({"order": order}, tmp_path / "order.safetensors")
    blob = {"type": "safetensors", "path": "order.safetensors", "tensor_key": "order"}
    workload = make_workload("w", axes={}, inputs={"x": {"type": "random"}, "order": blob})
    write_trace_set(
        tmp_path,
        definitions=[
            make_definition(
                axes={"rows": rows, "width": width},
                inputs={"x": "float16[rows, width]", "order": "int64[rows]"},
                outputs={"y": "float16[rows, width]"},
                reference=source,
            )
        ],
        solutions=[make_solution("gather", source=source)],
        workloads=[make_trace(workload=workload, solution=None)],
    )
    (job,) = run(TraceSet.from_path(tmp_path), devices=["0"], profile_baseline=False)
    x = torch.randn(rows, width, device="cuda").half()
    own_ms, _ = bench_gpu_time(torch.index_select, args=(x, 0, order.cuda()), num_iters=10, enable_cupti=False)
    assert job.trace.evaluation.performance.latency_ms < 1.3 * own_ms
