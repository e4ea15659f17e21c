"""What evaluators declare: the host reads it without torch, and a new one is its file alone. Keys of `extra`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench import evaluator_record as record_module
from flashinfer_bench.bench.config_sources import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import (
    find_misspelt_extras,
    find_records,
    find_wrong_extras,
    known_keys,
    known_op_types,
    mark_built_in,
    why_wrong,
)
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.registry import _EVALUATORS, choose_evaluator, find_evaluator
from flashinfer_bench.bench.evaluators.verdict import read_parameter
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import WorkloadFault
from tests.cli.fake_engine import finished, write_small_set
from tests.kit import make_definition, make_solution, make_trace, write_trace_set
from tests.kit.scratch import copy_package, run_with

pytestmark = pytest.mark.cpu
BUNDLED = Path(__file__).parents[3] / "flashinfer-trace"
EXTRA = make_definition(op_type="top_k", inputs={"scores": "float32[n]"}, outputs={"indices": "int32[n]"})


def test_host_and_judge_know_the_same_evaluators_and_choose_the_same_one():
    classes = [*_EVALUATORS, DefaultEvaluator]
    assert [(one.name, one.revision) for one in find_records()] == [(each.__name__, each.revision) for each in classes]
    definitions = [*TraceSet.from_path(BUNDLED).definitions.values(), EXTRA]
    assert all(mark_built_in(each) == choose_evaluator(each).fingerprint for each in definitions)
    assert len({mark_built_in(definition) for definition in definitions}) >= 5
    assert set(BenchmarkConfig.default().op_type_config) <= set(known_op_types())


SAMPLING = {"op_type": "sampling", "axes": {"n": None, "v": 16}, "inputs": {"probs": "float32[n, v]"}}


@pytest.mark.parametrize(
    ("parts", "evaluator"),
    [
        ({"op_type": "dsa-paged"}, "DSAEvaluator"),
        ({"op_type": "moe", "inputs": {"x": "float8_e4m3fn[n]"}}, "LowBitEvaluator"),
        ({"op_type": "moe", "inputs": {"x": "int8[n]"}}, "LowBitEvaluator"),
        ({"op_type": "moe", "inputs": {"x": "bfloat16[n]", "mask": "bool[n]"}}, "DefaultEvaluator"),
        ({**SAMPLING, "outputs": {"s": "int64[n]"}}, "SamplingEvaluator"),
        ({**SAMPLING, "outputs": {"r": "float32[n, v]"}}, "DefaultEvaluator"),
    ],
)
def test_the_op_type_and_the_dtypes_pick_the_evaluator(parts, evaluator):
    assert find_evaluator(make_definition(**parts)).__name__ == evaluator


NEW = '''
from flashinfer_bench.bench.evaluator_record import SHARE, EvaluatorRecord
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
import torch

class ParityEvaluator(DefaultEvaluator):
    """Takes what has parity."""

    record = EvaluatorRecord(7, ("parity",), lambda definition: True, {"parity_share": SHARE})
'''
USE = """
import json, sys
from flashinfer_bench.bench.evaluator_record import known_op_types, mark_built_in, why_wrong
from tests.kit import make_definition
definition = make_definition(op_type="parity")
told = [mark_built_in(definition), "parity" in known_op_types(), why_wrong("parity_share", 2), "torch" in sys.modules]
from flashinfer_bench.bench.evaluators.registry import choose_evaluator
choice = choose_evaluator(definition)
print(json.dumps([*told, choice.fingerprint, choice.why, choice.module]))
"""


def test_an_evaluator_is_added_by_its_file_alone(tmp_path):
    copy = copy_package(tmp_path)
    (copy / "bench" / "evaluators" / "parity.py").write_text(NEW)
    mark, is_known, wrong, has_torch, fingerprint, why, module = run_with(copy, USE)
    assert (mark, is_known, has_torch) == ("ParityEvaluator 7", True, False)
    assert (fingerprint, why, module) == (mark, "Takes what has parity.", "flashinfer_bench.bench.evaluators.parity")
    assert wrong == "extra.parity_share is 2; it should be a number from 0 to 1"


def test_a_raised_revision_is_judged_again(tmp_path, monkeypatch):
    config = BenchmarkConfig.default(devices=["cpu"])
    trace_set = TraceSet.from_path(write_small_set(tmp_path))
    jobs = Benchmark(trace_set, config).plan().jobs
    events = [finished(job, environment={"hardware": job.fingerprint["hardware"], "libs": {}}) for job in jobs]
    trace_set.keep_traces([event.trace for event in events if isinstance(event, JobFinished)])
    assert Benchmark(trace_set, config).plan(resume=True).resumed == len(jobs) > 0
    raised = replace(find_records()[-1], revision=100)
    monkeypatch.setattr(record_module, "find_records", lambda: (raised,))
    assert Benchmark(trace_set, config).plan(resume=True).redone_reasons == {"evaluator changed": len(jobs)}


VALUES = {
    "sampling_validation_trials": (1, [0, 2.5, True, None]),
    "sampling_tvd_threshold": (1, ["abc", -1, 1.5, float("nan")]),
    "sampling_false_alarm_rate": (0, [2]),
    "sampling_least_shift": (0.5, [0, 0.6]),
    "max_absolute_error": (float("inf"), ["abc", 0, True, 10**400]),
    "max_error_cap": (0.5, [0]),
    "max_error_norm": (2.5, [0]),
    "dsa_score_tolerance": (0, [1, {}]),
    "measure_rejected": (True, [1]),
    "summed_tolerance": (False, ["yes"]),
}
"""Key → a right value and wrong ones."""


def test_values_of_known_keys_are_checked_and_of_others_are_not():
    assert set(VALUES) == set(known_keys())
    for key, (right, wrong) in VALUES.items():
        assert why_wrong(key, right) is None
        for value in wrong:
            assert why_wrong(key, value).startswith(f"extra.{key} is {repr(value)[:80]}; it should be ")
    assert why_wrong("max_absolute_error", "1e-3").endswith("(YAML reads 1e-3 as text: write 1.0e-3)")
    config = ResolvedEvalConfig(extra={"rounding_max_bias": None})
    assert find_wrong_extras([config]) == find_misspelt_extras([config]) == []
    with pytest.raises(WorkloadFault, match="max_error_cap is 'abc'"):  # an evaluator that is called alone
        read_parameter(ResolvedEvalConfig(extra={"max_error_cap": "abc"}), "max_error_cap", 1.0)


def test_a_plan_with_a_wrong_value_is_refused_with_its_place_and_a_misspelt_key_is_warned_of(tmp_path, capsys):
    parts = {"definitions": [make_definition()], "solutions": [make_solution()]}
    folder = write_trace_set(tmp_path / "set", **parts, workloads=[make_trace(solution=None)])
    file = tmp_path / "my.yaml"
    command = ["run", "--local", str(folder), "--config", str(file), "--dry-run", "--devices", "cpu"]
    file.write_text("definition_config:\n  double:\n    extra: {max_error_cap: abc}\n")
    assert main(command) == 2
    assert f"{file.name}: definition_config.double: extra.max_error_cap is 'abc'" in capsys.readouterr().err
    file.write_text("extra: {max_eror_cap: 3}\n")
    assert main(command) == 0
    said = capsys.readouterr().err
    assert f"warning: {file.name}: extra.max_eror_cap" in said
    assert "did you mean 'max_error_cap'?" in said
