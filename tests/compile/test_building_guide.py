"""docs/building.md: its files compile as they stand, and those for a CPU are right."""

import re

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.compile import BuildFarm, BuildTarget, find_toolchain
from flashinfer_bench.data import TraceSet
from tests.conftest import CHECKOUT
from tests.kit import make_definition, make_solution, make_trace

TOOLCHAIN = find_toolchain()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.cpu]
GUIDE = (CHECKOUT / "docs" / "building.md").read_text()
FORMS = re.findall(r"^### (C\+\+|CUDA), (tvm-ffi|torch)\n(.*?)(?=^##)", GUIDE, re.DOTALL | re.MULTILINE)


def solution_of(language, binding, text):
    """Make the solution of a section of the guide; each block begins with its file's name."""
    sources = dict(re.findall(r"^```cpp\n// (\S+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    entry = f"{next(iter(sources))}::run"
    name = {"C++": "cpp", "CUDA": "cuda"}[language]
    parts = {"language": name, "binding": binding, "entry_point": entry, "destination_passing_style": True}
    return make_solution(f"{name}_{binding}", sources=sources, **parts)


def test_the_guide_has_each_language_with_each_binding():
    assert {form[:2] for form in FORMS} == {(one, other) for one in ("C++", "CUDA") for other in ("tvm-ffi", "torch")}


@pytest.mark.skipif(TOOLCHAIN.cxx is None or TOOLCHAIN.tvm_ffi is None, reason="needs g++ and tvm-ffi")
def test_the_cpp_files_are_right(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path))
    solutions = [solution_of(*form) for form in FORMS if form[0] == "C++"]
    trace_set = TraceSet(
        definitions={"double": make_definition()},
        solutions={"double": solutions},
        workloads={"double": [make_trace(solution=None)]},
    )
    config = BenchmarkConfig(iterations=1, warmup_runs=0, num_trials=1, devices=["cpu"])
    result = Benchmark(trace_set, config).run_all(save_results=False)
    assert {
        trace.solution: trace.evaluation.log for trace in result.traces["double"] if not trace.is_successful()
    } == {}
    assert len(result.traces["double"]) == len(solutions) == 2


@pytest.mark.skipif(TOOLCHAIN.cuda is None or TOOLCHAIN.tvm_ffi is None, reason="needs nvcc and tvm-ffi")
def test_the_cuda_files_compile(tmp_path):
    solutions = [solution_of(*form) for form in FORMS if form[0] == "CUDA"]
    with BuildFarm(tmp_path, jobs=2, target=BuildTarget.of([(9, 0)])) as farm:
        assert [built.error for built in farm.build_all(solutions)] == [None, None]
