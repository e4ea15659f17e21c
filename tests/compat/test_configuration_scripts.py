"""Scripts that configure a run in Python, old names among them."""

import pytest
from pydantic import ValidationError

from flashinfer_bench.bench import BenchmarkConfig, EvalConfig, ResolvedEvalConfig
from tests.kit import make_definition

GEMM = make_definition("gemm_n16", op_type="gemm")
SAMPLING = make_definition("top_p", op_type="sampling")


@pytest.mark.parametrize(
    ("given", "extra"),
    [
        ({"log_dir": "/tmp/logs"}, {}),
        ({"sampling_validation_trials": 50}, {"sampling_validation_trials": 50}),
        ({"sampling_tvd_threshold": 0.1, "extra": {"mine": 1}}, {"sampling_tvd_threshold": 0.1, "mine": 1}),
    ],
    ids=lambda value: next(iter(value), ""),
)
def test_old_settings_are_taken_with_a_warning_at_the_scripts_line(given, extra):
    with pytest.warns(DeprecationWarning, match="log_dir|sampling") as caught:
        config = BenchmarkConfig(**given)
    assert config.extra == extra
    assert caught[0].filename == __file__


def test_an_old_setting_beats_the_bundled_file():
    with pytest.warns(DeprecationWarning, match="extra=") as caught:
        config = BenchmarkConfig.default(sampling_validation_trials=7)
    assert config.resolve_eval_config(SAMPLING).extra["sampling_validation_trials"] == 7
    assert caught[0].filename == __file__


def test_an_attribute_that_is_assigned_beats_every_section():
    config = BenchmarkConfig(definition_config={"gemm_n16": EvalConfig(iterations=7)})
    config.iterations = 20
    config.definitions = ["gemm_n16"]
    assert (config.iterations, config.resolve_eval_config(GEMM).iterations) == (20, 20)
    assert config.resolve_eval_config(GEMM).origins["iterations"] == "override"
    assert config.definitions == ["gemm_n16"]


@pytest.mark.parametrize(("name", "value"), [("iterations", 0), ("itertions", 5), ("rtol", -1.0)])
def test_a_wrong_value_is_refused_and_changes_nothing(name, value):
    config = BenchmarkConfig()
    with pytest.raises(ValidationError, match=name):
        setattr(config, name, value)
    assert config == BenchmarkConfig()


@pytest.mark.parametrize("name", ["rtol", "atol"])
def test_a_tolerance_of_nothing_is_refused(name):
    with pytest.raises(ValidationError, match="greater than 0"):
        BenchmarkConfig(**{name: 0.0})
    for section in ("op_type_config", "definition_config"):
        with pytest.raises(ValidationError, match=f"{name}"):
            BenchmarkConfig(**{section: {"gemm": {name: 0.0}}})
    with pytest.raises(ValidationError, match="greater than 0"):
        EvalConfig(**{name: 0.0})


def test_what_is_resolved_tells_whether_references_are_timed():
    resolved = BenchmarkConfig(profile_baseline=False).resolve_eval_config(GEMM)
    assert resolved.profile_baseline is False
    assert resolved == BenchmarkConfig().resolve_eval_config(GEMM)
    assert "profile_baseline" not in resolved.values()
    assert ResolvedEvalConfig.model_validate(resolved.to_order()).profile_baseline is False
