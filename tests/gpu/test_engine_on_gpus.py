"""The engine on real GPUs: Triton, both runners, several devices, kernels that break their context.

Run by hand where there are GPUs: python -m pytest -m gpu
"""

from contextlib import ExitStack

import pytest
import torch
from safetensors.torch import save_file

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished, JobStarted, Notice, RunStarted
from flashinfer_bench.bench.runner.device_lock import ask_for_device
from flashinfer_bench.data import TraceSet
from flashinfer_bench.testing import bench_gpu_time
from tests.conftest import CHECKOUT
from tests.gpu.runs import judge, run, statuses, write_set
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(300)]

OUT_OF_BOUNDS = """
import torch
def run(x, y):
    y[torch.tensor([10**9], device=x.device)] = 1
"""


HONEST = "def run(x, y):\n    y.copy_(x * 2)\n"
SIZES = [{"n": 64 + index} for index in range(4)]


@pytest.mark.parametrize("isolated", [False, True], ids=["persistent", "isolated"])
def test_bundled_triton_solutions_pass(isolated):
    judged = judge(TraceSet.from_path(CHECKOUT / "flashinfer-trace"), authors=["triton"], use_isolated_runner=isolated)
    assert {*statuses(judged).values()} == {"PASSED"}
    assert {one.extra["measurement"]["method"] for one in judged.values()} == {"cupti"}


def test_a_kernel_that_breaks_its_context_fails_alone_and_outputs_on_another_device_are_refused(tmp_path):
    sources = {"a_broken": OUT_OF_BOUNDS, "honest": HONEST, "on_cpu": "def run(x):\n    return (x * 2).cpu()\n"}
    found = statuses(judge(write_set(tmp_path, sources, axes=SIZES)))
    assert found == {"a_broken": "RUNTIME_ERROR", "honest": "PASSED", "on_cpu": "INCORRECT_DTYPE"}


def test_the_best_of_each_workload_is_confirmed(tmp_path):
    slow = "def run(x, y):\n    y.copy_(x.cos().acos() * 0 + x * 2)\n"
    jobs = run(write_set(tmp_path, {"quick": HONEST, "slow": slow}, axes=SIZES))
    levels = [(job.job.solution.name, job.trace.evaluation.extra["measurement"]["assurance"]) for job in jobs]
    assert sorted(levels) == [("quick", "full")] * 4 + [("quick", "standard")] * 4 + [("slow", "standard")] * 4
    (alone,) = run(write_set(tmp_path / "alone", {"quick": HONEST}))
    assert alone.trace.evaluation.extra["measurement"]["assurance"] == "full"


@pytest.mark.gpu(count=2)
def test_one_solution_on_two_gpus_uses_both(tmp_path):
    jobs = run(write_set(tmp_path, {"honest": HONEST}, axes=4 * SIZES), devices=None)
    assert len(jobs) == 16
    assert len({job.device.uuid for job in jobs}) >= 2


def test_a_run_waits_for_a_gpu_that_another_holds(tmp_path):
    trace_set = write_set(tmp_path, {"honest": HONEST})
    benchmark = Benchmark(trace_set, BenchmarkConfig.default(devices=["0"], num_trials=1))
    with ExitStack() as other_run:
        list(ask_for_device(benchmark.machine.devices[0], other_run))
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
    source = {
        "dps": f"import torch\nSEEN = set()\ndef run(x, y):\n    torch.mul(x, 2, out=y)\n{seen}",
        "value": f"SEEN = set()\ndef run(x):\n    y = x * 2\n{seen}    return y\n",
    }
    solution = make_solution("places", source=source[style], destination_passing_style=style == "dps")
    (one,) = judge(write_set(tmp_path, [solution], axes=[{"n": 1 << 20}]), profile_baseline=False).values()
    assert one.status.value == "PASSED"
    places = [int(line.split()[1]) for line in one.log.splitlines() if line.startswith("PLACES ")]
    assert max(places) > 2


def test_shared_memory_is_as_fast_as_memory_of_ones_own(tmp_path):
    """Rows in random order, over more memory than small pages reach, in an arena of an odd size."""
    rows, width = 3_000_007, 96
    source = "import torch\ndef run(x, order):\n    return torch.index_select(x, 0, order)\n"
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    save_file({"order": order}, tmp_path / "order.safetensors")
    blob = {"type": "safetensors", "path": "order.safetensors", "tensor_key": "order"}
    workload = make_workload("w", axes={}, inputs={"x": {"type": "random"}, "order": blob})
    definition = make_definition(
        axes={"rows": rows, "width": width},
        inputs={"x": "float16[rows, width]", "order": "int64[rows]"},
        outputs={"y": "float16[rows, width]"},
        reference=source,
    )
    write_trace_set(tmp_path, workloads=[make_trace(workload=workload, solution=None)])
    (one,) = judge(
        write_set(tmp_path, {"gather": source}, definition=definition, axes=[]), profile_baseline=False
    ).values()
    x = torch.randn(rows, width, device="cuda").half()
    own_ms, _ = bench_gpu_time(torch.index_select, args=(x, 0, order.cuda()), num_iters=10, enable_cupti=False)
    assert one.performance.latency_ms < 1.3 * own_ms
