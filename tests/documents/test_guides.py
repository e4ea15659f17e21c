"""docs/trace-set.md and docs/formats.md: their examples are sets that are judged, and what they name is there."""

import json
import re

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.dtypes import DTYPES
from tests.kit import make_solution, write_trace_set
from tests.kit.documents import DOCS

pytestmark = pytest.mark.cpu
GUIDE = (DOCS / "trace-set.md").read_text()
FEW = {"iterations": 1, "warmup_runs": 0, "num_trials": 1, "devices": ["cpu"]}


def examples_of(page):
    return re.findall(r"```json\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def judge(trace_set):
    """Return the only evaluation of a run."""
    benchmark = Benchmark(trace_set, BenchmarkConfig.default(**FEW), cache=trace_set.root / "cache")
    ((trace,),) = benchmark.run_all(save_results=False).traces.values()
    return trace.evaluation


def test_the_example_of_a_set_is_judged(tmp_path):
    from safetensors.torch import save_file
    from torch import arange

    definition, line = map(json.loads, examples_of("trace-set.md"))
    solution = make_solution(definition=definition["name"], source=definition["reference"]).to_dict()
    files = {
        "definitions/gather/gather_rows_h4096.json": definition,
        "workloads/gather/gather_rows_h4096.jsonl": [line],
        "solutions/alice/gather/gather_rows_h4096/double_python.json": solution,
    }
    root = write_trace_set(tmp_path, files)
    blob = root / line["workload"]["inputs"]["indices"]["path"]
    blob.parent.mkdir(parents=True)
    save_file({"indices": arange(7) * 9}, blob)
    trace_set = TraceSet.from_path(root)
    assert trace_set.issues == []
    assert judge(trace_set).status.value == "PASSED"


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_named_but_for_the_second_spelling_of_one(name):
    row = next(line for line in GUIDE.splitlines() if line.startswith("| `dtype`"))
    assert name == "float4_e2m1fn_x2" or re.search(rf"\b{name}\b", row)


def test_the_examples_of_formats_are_a_problem_with_a_solution_judged_by_its_line(tmp_path):
    definition, line, solution = map(json.loads, examples_of("formats.md"))
    files = {"definition.json": definition, "workload.jsonl": [line], "solution.json": solution}
    loaded = TraceSet.from_path(write_trace_set(tmp_path, {**files, "kernel.py": definition["reference"]}))
    assert [issue.severity for issue in loaded.issues] == ["warning"] * 2
    evaluation = judge(loaded)
    assert evaluation.status.value == "PASSED"
    used, given = evaluation.extra["run"]["config"], line["tolerance"]
    assert (used["atol"], used["rtol"]) == (given["max_atol"], given["max_rtol"])
    assert used["required_matched_ratio"] == 0.99
    assert used["extra"] == {"max_absolute_error": given["max_error_cap"], "summed_tolerance": True}
