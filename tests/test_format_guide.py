"""docs/trace-set.md: its definition and its workload's line are a set that can be run."""

import json
import re

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import Definition, TraceSet
from flashinfer_bench.data.dtypes import DTYPES
from tests.conftest import CHECKOUT
from tests.kit import make_solution, write_trace_set

pytestmark = pytest.mark.cpu

GUIDE = (CHECKOUT / "docs" / "trace-set.md").read_text()
DEFINITION, LINE = re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)


def test_the_example_of_the_guide_is_judged(tmp_path):
    from safetensors.torch import save_file
    from torch import arange

    definition, line = Definition.model_validate_json(DEFINITION), json.loads(LINE)
    solution = make_solution(definition=definition.name, source=definition.reference)
    lines = {"workloads/gather/gather_rows_h4096.jsonl": LINE}
    root = write_trace_set(tmp_path, lines, definitions=[definition], solutions=[solution])
    blob = root / line["workload"]["inputs"]["indices"]["path"]
    blob.parent.mkdir(parents=True)
    save_file({"indices": arange(7) * 9}, blob)
    trace_set = TraceSet.from_path(root)
    assert trace_set.issues == []
    config = BenchmarkConfig(iterations=1, warmup_runs=0, num_trials=1, devices=["cpu"])
    result = Benchmark(trace_set, config).run_all(save_results=False)
    assert result.get_best_trace(definition.name) is not None


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_named_but_for_the_second_spelling_of_one(name):
    row = next(line for line in GUIDE.splitlines() if line.startswith("| `dtype`"))
    assert name == "float4_e2m1fn_x2" or re.search(rf"\b{name}\b", row)
