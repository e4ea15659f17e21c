"""Rules beside the tolerance, through the whole engine: what they reject is told with rule and evidence."""

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

SOFTCAP = "import torch\ndef run(x):\n    return 40 * torch.tanh(x / 40)\n"
SMALL = "def run(x):\n    return x * 1e-4\n"
SOLUTIONS = {
    "honest_softcap": ("softcap", SOFTCAP),
    "identity": ("softcap", "def run(x):\n    return x.clone()\n"),
    "honest_small": ("small", SMALL),
    "zeros": ("small", "def run(x):\n    return x * 0\n"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return evaluations by solution: of a usual run, and of one without the rules."""
    root = tmp_path_factory.mktemp("set")
    write_trace_set(
        root,
        definitions=[make_definition("softcap", reference=SOFTCAP), make_definition("small", reference=SMALL)],
        solutions=[
            make_solution(name, definition=definition, source=source, destination_passing_style=False)
            for name, (definition, source) in SOLUTIONS.items()
        ],
        workloads=[
            make_trace(definition=name, workload=make_workload("w0", axes={"n": 1 << 16}), solution=None)
            for name in ("softcap", "small")
        ],
    )

    def run(**rules):
        settings = {"devices": ["cpu"], "iterations": 5, "warmup_runs": 1, "num_trials": 2, "profile_baseline": False}
        benchmark = Benchmark(TraceSet.from_path(root), BenchmarkConfig.default(**settings, **rules))
        events = benchmark.run(benchmark.plan(), save_results=False)
        return {e.job.solution.name: e.trace.evaluation for e in events if isinstance(e, JobFinished)}

    return run(), run(norm_rule=False, regimes_rule=False)


def test_each_rule_rejects_what_the_tolerance_lets_pass(finished):
    usual, without = finished
    assert {name: one.status.value for name, one in without.items()} == dict.fromkeys(SOLUTIONS, "PASSED")
    wrong = {name: one.status.value for name, one in usual.items() if one.status.value != "PASSED"}
    assert wrong == {"identity": "INCORRECT_NUMERICAL", "zeros": "INCORRECT_NUMERICAL"}


def test_a_rejection_names_rule_and_evidence(finished):
    usual, _ = finished
    zeros, identity = (usual[name].extra["integrity"] for name in ("zeros", "identity"))
    assert (zeros["rule"], identity["rule"]) == ("norm", "regimes")
    assert zeros["evidence"]["output"] == "y"
    assert zeros["evidence"]["error_norm"] == pytest.approx(1.0)
    assert identity["evidence"]["regime"] in usual["honest_softcap"].extra["regimes"]
    assert identity["evidence"]["regime"] in usual["identity"].log


def test_an_honest_trace_tells_which_regimes_were_judged(finished):
    usual, without = finished
    assert set(usual["honest_softcap"].extra["regimes"].values()) == {"judged"}
    assert len(usual["honest_softcap"].extra["regimes"]) == 8
    assert "regimes" not in without["honest_softcap"].extra
