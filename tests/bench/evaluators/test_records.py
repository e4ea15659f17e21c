"""Records of evaluators: host and judge agree on them. Keys of `extra`."""

from pathlib import Path

import pytest

from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.bench.evaluator_record import KNOWN_KEYS, built_in_key, known_op_types, why_wrong
from flashinfer_bench.bench.evaluators.registry import choose_evaluator
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from tests.kit import make_definition, make_solution, make_trace, write_trace_set

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
    assert set(VALUES) == set(KNOWN_KEYS)
    for key, (right, wrong) in VALUES.items():
        assert why_wrong(key, right) is None
        for value in wrong:
            assert why_wrong(key, value).startswith(f"extra.{key} is {repr(value)[:80]}; it should be ")
    assert why_wrong("max_absolute_error", "1e-3").endswith("(YAML reads 1e-3 as text: write 1.0e-3)")


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
