"""The bundled RMS norm in further languages. A missing package or compiler is a reason to skip.

Run by hand where there are GPUs: python -m pytest -m gpu
"""

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.store.skeletons import make_solution_text
from tests.conftest import CHECKOUT
from tests.gpu.runs import FEW, judge, statuses
from tests.kit import make_solution

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(300)]

DEFINITION = "rmsnorm_h4096"
AUTHORS = ["cutedsl", "cutile", "cutlass", "gluon", "helion"]


def judge_or_skip(trace_set, name):
    settings = {"definitions": [DEFINITION], "solutions": [name]}
    plan = Benchmark(trace_set, BenchmarkConfig.default(devices=["0"], **FEW, **settings)).plan()
    if plan.skips:
        pytest.skip(plan.skips[0].reason)
    return statuses(judge(trace_set, **settings))


@pytest.mark.parametrize("author", AUTHORS)
def test_a_bundled_rmsnorm_passes(author):
    name = f"{author}_{DEFINITION}"
    assert judge_or_skip(TraceSet.from_path(CHECKOUT / "flashinfer-trace"), name) == {name: "PASSED"}


@pytest.mark.parametrize("language", ["cutedsl", "cutile", "cutlass"])
def test_a_skeleton_runs_and_writes_zeros(language):
    trace_set = TraceSet.from_path(CHECKOUT / "flashinfer-trace")
    definition = trace_set.definitions[DEFINITION]
    path = "main.cu" if language == "cutlass" else "main.py"
    sources = {path: make_solution_text(definition, trace_set.get_solution(f"{language}_{DEFINITION}").spec.language)}
    spec = {"language": language, "entry_point": f"{path}::run", "target_hardware": ["cuda"]}
    solution = make_solution("zeros", definition=DEFINITION, sources=sources, **spec)
    trace_set.solutions[DEFINITION].append(solution)
    assert judge_or_skip(trace_set, "zeros") == {"zeros": "INCORRECT_NUMERICAL"}
