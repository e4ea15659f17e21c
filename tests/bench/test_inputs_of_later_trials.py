"""The inputs of each trial are judged, those of later trials among the timed calls; through the whole engine."""

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

REFERENCE = "def run(x, table):\n    return x[table]\n"
RIGHT_FOR_ONE_TABLE = "first = []\ndef run(x, table):\n    first.append(table.clone())\n    return x[first[0]]\n"


@pytest.mark.parametrize(
    ("trials", "source", "status", "told"),
    [
        (1, RIGHT_FOR_ONE_TABLE, "PASSED", ""),
        (2, RIGHT_FOR_ONE_TABLE, "INCORRECT_NUMERICAL", "in a call that was timed"),
        (2, REFERENCE, "PASSED", ""),
    ],
    ids=["one trial", "a second table", "honest"],
)
def test_who_is_right_for_the_first_trial_alone_is_found_among_the_timed_calls(tmp_path, trials, source, status, told):
    write_trace_set(
        tmp_path,
        definitions=[
            make_definition(
                "rows",
                inputs={"x": "float32[n]", "table": "int64[n]"},
                outputs={"y": "float32[n]"},
                reference=REFERENCE,
            )
        ],
        solutions=[make_solution("one", definition="rows", source=source, destination_passing_style=False)],
        workloads=[make_trace(definition="rows", workload=make_workload("w0", axes={"n": 4096}), solution=None)],
    )
    settings = {"devices": ["cpu"], "iterations": 4, "warmup_runs": 1, "profile_baseline": False}
    config = BenchmarkConfig.default(**settings, num_trials=trials)
    (trace,) = Benchmark(TraceSet.from_path(tmp_path), config).run_all(dump_traces=False).traces["rows"]
    assert trace.evaluation.status.value == status
    assert trace.evaluation.log.startswith(told)
