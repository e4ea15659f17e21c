"""docs/formats.md: its examples are a problem that loads, and every setting that it names is there."""

import json
import re

import pytest

from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.bench.evaluators.inputs.make import InputMaker
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.tolerances import own_tolerance
from flashinfer_bench.data import TraceSet
from tests.conftest import CHECKOUT

pytestmark = pytest.mark.cpu

GUIDE = (CHECKOUT / "docs" / "formats.md").read_text()


def test_the_examples_are_a_problem_with_a_solution(tmp_path):
    from torch import device

    definition, line, solution = re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)
    files = {"definition.json": definition, "workload.jsonl": line, "solution.json": solution}
    for name, text in {**files, "kernel.py": "def run(x, scale): ..."}.items():
        (tmp_path / name).write_text(text)
    loaded = TraceSet.from_path(tmp_path)
    assert [issue.severity for issue in loaded.issues] == ["warning"] * 2
    (read,) = loaded.definitions.values()
    workload = loaded.workloads[read.name][0].workload
    assert loaded.solutions[read.name][0].get_entry_source().content == "def run(x, scale): ..."
    inputs = InputMaker(read, workload, device("cpu"), tmp_path).make(seed=1)
    assert [list(output.shape) for output in Reference.compile(read)(inputs)] == [[8, 64]]
    given = json.loads(line)["tolerance"]
    resolved = BenchmarkConfig.default().resolve_eval_config(read, own_tolerance(loaded, read.name, workload))
    assert (resolved.atol, resolved.rtol) == (given["max_atol"], given["max_rtol"])
    assert resolved.required_matched_ratio == 0.99
    assert resolved.extra == {"max_absolute_error": given["max_error_cap"], "summed_tolerance": True}
