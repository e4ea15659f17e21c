"""The compiled solutions that ship, and those that use FlashInfer: built and judged as in a run.

On a CPU the quick ones. The others, in both runners: `python -m pytest -m gpu` and this file.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

BUNDLED = Path(__file__).parents[1] / "flashinfer-trace"
QUICK = "cpp_gqa_paged_decode_h32_kv8_d128_ps16"
"""It returns two outputs by tvm-ffi. tests/golden judges solutions that write into their outputs."""


@pytest.fixture(scope="module", autouse=True)
def empty_cache(tmp_path_factory):
    """Build into a cache of our own, so that something is built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIB_CACHE_PATH", str(tmp_path_factory.mktemp("cache")))
        yield


def judge(**settings):
    """Run a part of the bundled set; return status by solution, and what was skipped."""
    config = BenchmarkConfig.default(
        warmup_runs=1, iterations=3, num_trials=1, profile_baseline=False, timeout_seconds=900.0, **settings
    )
    benchmark = Benchmark(TraceSet.from_path(BUNDLED), config)
    plan = benchmark.plan()
    finished = [event for event in benchmark.run(plan, save_results=False) if isinstance(event, JobFinished)]
    assert not benchmark.faults
    statuses = {}
    for event in finished:
        log = event.trace.evaluation.log
        statuses.setdefault(event.job.solution.name, {})[event.trace.evaluation.status.value] = log
    return statuses, [skip.reason for skip in plan.skips]


@pytest.mark.cpu
@pytest.mark.skipif(shutil.which("g++") is None or find_spec("tvm_ffi") is None, reason="needs g++ and apache-tvm-ffi")
def test_a_cpp_solution_passes_on_a_cpu():
    statuses, _ = judge(devices=["cpu"], solutions=[QUICK])
    assert {name: list(found) for name, found in statuses.items()} == {QUICK: ["PASSED"]}


@pytest.mark.cpu
def test_solutions_for_other_hardware_are_skipped():
    statuses, reasons = judge(devices=["cpu"], definitions=["rmsnorm_h4096"], authors=["flashinfer", "plain"])
    assert list(statuses) == ["plain_rmsnorm_h4096"]
    assert any(reason.startswith("target_hardware is cuda") for reason in reasons)


@pytest.mark.gpu
@pytest.mark.parametrize("isolated", [False, True], ids=["persistent", "isolated"])
@pytest.mark.parametrize("author", ["cuda", "flashinfer"])
def test_compiled_solutions_pass_on_a_gpu(author, isolated):
    if author == "flashinfer" and find_spec("flashinfer") is None:
        pytest.skip("flashinfer is not installed")
    statuses, reasons = judge(devices=["0"], authors=[author], use_isolated_runner=isolated)
    assert not reasons
    assert len(statuses) >= 6
    failed = {name: found for name, found in statuses.items() if set(found) != {"PASSED"}}
    assert not failed
