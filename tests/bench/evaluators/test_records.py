"""Declarations of evaluators: the host reads them without torch, and a new evaluator is its file alone. Keys of
`extra`."""

from pathlib import Path

import pytest

from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.bench.config_sources import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import built_in_key, known_keys, known_op_types, why_wrong
from flashinfer_bench.bench.evaluators.registry import choose_evaluator
from flashinfer_bench.bench.evaluators.verdict import read_parameter
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import WorkloadFault
from tests.kit import make_definition, make_solution, make_trace, write_trace_set
from tests.kit.scratch import copy_package, run_with

pytestmark = pytest.mark.cpu
BUNDLED = Path(__file__).parents[3] / "flashinfer-trace"
SAMPLING = {"op_type": "sampling", "axes": {"n": None, "v": 16}, "inputs": {"probs": "float32[n, v]"}}
CHOSEN = [
    ({"op_type": "top_k", "inputs": {"scores": "float32[n]"}, "outputs": {"indices": "int32[n]"}}, "TopKEvaluator"),
    ({"op_type": "dsa-paged"}, "DSAEvaluator"),
    ({"op_type": "moe", "inputs": {"x": "float8_e4m3fn[n]"}}, "LowBitEvaluator"),
    ({"op_type": "moe", "inputs": {"x": "int8[n]"}}, "LowBitEvaluator"),
    ({"op_type": "moe", "inputs": {"x": "bfloat16[n]", "mask": "bool[n]"}}, "DefaultEvaluator"),
    ({**SAMPLING, "outputs": {"s": "int64[n]"}}, "SamplingEvaluator"),
    ({**SAMPLING, "outputs": {"r": "float32[n, v]"}}, "DefaultEvaluator"),
]


def test_host_and_judge_choose_the_same_evaluator_by_op_type_and_dtypes():
    for parts, name in CHOSEN:
        assert built_in_key(make_definition(**parts)).split()[0] == name
    definitions = [*TraceSet.from_path(BUNDLED).definitions.values(), *(make_definition(**one) for one, _ in CHOSEN)]
    assert all(built_in_key(each) == choose_evaluator(each).fingerprint for each in definitions)
    assert set(BenchmarkConfig.default().op_type_config) <= set(known_op_types())


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
from flashinfer_bench.bench.evaluator_record import known_op_types, built_in_key, why_wrong
from tests.kit import make_definition
definition = make_definition(op_type="parity")
told = [built_in_key(definition), "parity" in known_op_types(), why_wrong("parity_share", 2), "torch" in sys.modules]
from flashinfer_bench.bench.evaluators.registry import choose_evaluator
choice = choose_evaluator(definition)
print(json.dumps([*told, choice.fingerprint, choice.why, choice.module]))
"""


def test_an_evaluator_is_added_by_its_file_alone(tmp_path):
    copy = copy_package(tmp_path)
    (copy / "bench" / "evaluators" / "parity.py").write_text(NEW)
    by_host = ["ParityEvaluator 7", True, "extra.parity_share is 2; it should be a number from 0 to 1", False]
    by_judge = ["ParityEvaluator 7", "Takes what has parity.", "flashinfer_bench.bench.evaluators.parity"]
    assert run_with(copy, USE) == by_host + by_judge


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
"""Key → a right value and wrong values."""


def test_values_of_known_keys_are_checked():
    assert set(VALUES) == set(known_keys())
    for key, (right, wrong) in VALUES.items():
        assert why_wrong(key, right) is None
        for value in wrong:
            assert why_wrong(key, value).startswith(f"extra.{key} is {repr(value)[:80]}; it should be ")
    assert why_wrong("max_absolute_error", "1e-3").endswith("(YAML reads 1e-3 as text: write 1.0e-3)")
    with pytest.raises(WorkloadFault, match="max_error_cap is 'abc'"):  # an evaluator that is called alone
        read_parameter(ResolvedEvalConfig(extra={"max_error_cap": "abc"}), "max_error_cap", 1.0)


SAID = {
    "definition_config:\n  double:\n    extra: {max_error_cap: abc}\n": (
        2,
        ["my.yaml: definition_config.double: extra.max_error_cap is 'abc'"],
    ),
    "extra: {max_eror_cap: 3}\n": (0, ["warning: my.yaml: extra.max_eror_cap", "did you mean 'max_error_cap'?"]),
    "extra: {rounding_max_bias: null}\n": (0, []),
}


@pytest.mark.parametrize("text", SAID)
def test_a_plan_with_a_wrong_value_is_refused_with_its_place_and_a_misspelt_key_is_warned_of(tmp_path, capsys, text):
    parts = {"definitions": [make_definition()], "solutions": [make_solution()]}
    folder = write_trace_set(tmp_path / "set", **parts, workloads=[make_trace(solution=None)])
    file, (code, words) = tmp_path / "my.yaml", SAID[text]
    file.write_text(text)
    assert main(["run", "--local", str(folder), "--config", str(file), "--dry-run", "--devices", "cpu"]) == code
    said = capsys.readouterr().err
    assert [word for word in words if word not in said] == []
    assert ("extra." in said) is bool(words)
