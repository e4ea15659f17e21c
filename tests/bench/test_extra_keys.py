"""Parameters of built-in evaluators: wrong values are refused before anything runs, misspelt keys are warned of."""

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.config_sources import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.verdict import read_parameter
from flashinfer_bench.bench.extra_keys import RULES, find_misspelt_extras, find_wrong_extras, why_wrong
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.errors import WorkloadFault
from tests.kit import make_definition, make_solution, make_trace, write_trace_set

RIGHT = {
    "sampling_validation_trials": [1, 100],
    "sampling_tvd_threshold": [0, 0.2, 1],
    "sampling_false_alarm_rate": [0, 1e-9],
    "sampling_least_shift": [0.001, 0.06, 0.5],
    "max_absolute_error": [1, 0.5, float("inf")],
    "max_error_cap": [1, 0.5, float("inf")],
    "max_error_norm": [0.05, 1, 2.5],
    "dsa_score_tolerance": [0, 0.5],
    "measure_rejected": [True, False],
    "summed_tolerance": [True, False],
}
WRONG = {
    "sampling_validation_trials": [0, -1, 2.5, True, None, "abc"],
    "sampling_tvd_threshold": ["abc", -1, 1.5, None, float("nan")],
    "sampling_false_alarm_rate": [2, []],
    "sampling_least_shift": [0, 0.6, True, "abc"],
    "max_absolute_error": ["abc", 0, -1, True],
    "max_error_cap": ["abc", 0, False, float("nan")],
    "max_error_norm": [0, -1, "abc", True],
    "dsa_score_tolerance": [1, {}],
    "measure_rejected": [1, "yes"],
    "summed_tolerance": [1, "yes"],
}


def test_every_known_key_has_right_and_wrong_values_here():
    assert set(RIGHT) == set(WRONG) == set(RULES)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in RIGHT.items() for value in values])
def test_a_right_value_passes(key, value):
    assert why_wrong(key, value) is None


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_a_wrong_value_is_named(key, value):
    assert why_wrong(key, value).startswith(f"extra.{key} is {value!r}; it should be ")


def test_a_number_that_no_float_holds_is_wrong():
    assert "it should be a number above 0" in why_wrong("max_absolute_error", 10**400)


def test_a_power_of_ten_that_yaml_reads_as_text_is_told_how_to_write():
    assert why_wrong("max_absolute_error", "1e-3").endswith("(YAML reads 1e-3 as text: write 1.0e-3)")


def test_a_key_of_somebody_else_may_have_any_value():
    config = ResolvedEvalConfig(extra={"rounding_max_bias": None})
    assert find_wrong_extras([config]) == find_misspelt_extras([config]) == []


def test_a_misspelt_key_is_told_once_with_its_place():
    config = BenchmarkConfig(extra={"sampling_tvd_treshold": 0.1}).resolve_eval_config(make_definition())
    (line,) = find_misspelt_extras([config, config])
    assert line.startswith("BenchmarkConfig: extra.sampling_tvd_treshold ")
    assert line.endswith("did you mean 'sampling_tvd_threshold'?")


def test_an_evaluator_that_is_called_alone_refuses_a_wrong_value_too():
    with pytest.raises(WorkloadFault, match="max_error_cap is 'abc'"):
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
    assert f"warning: {file.name}: extra.max_eror_cap" in capsys.readouterr().err
