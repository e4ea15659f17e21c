"""What a configuration reads, refuses and resolves to; the cascade has its own properties in test_config_cascade.py."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import ValidationError

from flashinfer_bench.bench.config import BenchmarkConfig, EvalConfig, describe_problems
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.timing.settings import PRECISION

GEMM = SimpleNamespace(name="gemm_n4096", op_type="gemm")
MOE = SimpleNamespace(name="moe_e8", op_type="moe")


@pytest.fixture
def write_yaml(tmp_path):
    def write(text):
        path = tmp_path / "my.yaml"
        path.write_text(text)
        return path

    return write


def problems_of(load):
    with pytest.raises(ValidationError) as caught:
        load()
    return describe_problems(caught.value)


def test_global_defaults_are_those_of_the_contract():
    config = BenchmarkConfig()
    assert config.resolve_eval_config(GEMM).values() == {
        "warmup_runs": 10,
        "iterations": 50,
        "num_trials": 3,
        "precision": PRECISION,
        "rtol": 1e-2,
        "atol": 1e-2,
        "required_matched_ratio": None,
        "norm_rule": True,
        "lost_rows_rule": True,
        "regimes_rule": True,
        "power_rule": True,
        "extra": {},
    }
    assert (config.use_isolated_runner, config.timeout_seconds, config.profile_baseline) == (False, 300, True)
    assert (config.definitions, config.solutions) == (None, None)


def test_default_loads_the_bundled_file_and_the_constructor_none():
    sampling = SimpleNamespace(name="top_p", op_type="sampling")
    assert BenchmarkConfig.default().resolve_eval_config(MOE).required_matched_ratio == 0.95
    assert BenchmarkConfig.default().resolve_eval_config(sampling).extra == {
        "sampling_validation_trials": 100,
        "sampling_tvd_threshold": 0.2,
    }
    assert BenchmarkConfig().resolve_eval_config(MOE).required_matched_ratio is None


def test_from_yaml_replaces_the_bundled_file(write_yaml):
    config = BenchmarkConfig.from_yaml(write_yaml("timeout_seconds: 600\n"), iterations=200)
    assert config.timeout_seconds == 600
    assert config.resolve_eval_config(MOE).required_matched_ratio is None
    assert config.resolve_eval_config(MOE).iterations == 200


def test_overrides_beat_the_sections_of_the_file(write_yaml):
    path = write_yaml(
        "op_type_config: {gemm: {rtol: 0.5}}\ndefinition_config: {gemm_n4096: {iterations: 7, atol: 0.3}}\n"
    )
    config = BenchmarkConfig.from_yaml(path, iterations=9, rtol=0.1)
    resolved = config.resolve_eval_config(GEMM)
    assert (config.iterations, resolved.iterations, resolved.rtol, resolved.atol) == (9, 9, 0.1, 0.3)


def test_an_overriding_section_beats_a_more_specific_one_of_the_file(write_yaml):
    path = write_yaml("definition_config: {gemm_n4096: {rtol: 0.5}}\n")
    config = BenchmarkConfig.from_yaml(path, op_type_config={"gemm": EvalConfig(rtol=0.1)})
    assert config.resolve_eval_config(GEMM).rtol == 0.1


def test_the_sections_of_a_merged_config_show_only_what_holds(write_yaml):
    path = write_yaml("definition_config: {gemm_n4096: {iterations: 7, extra: {a: 1, b: 2}}}\n")
    config = BenchmarkConfig.from_yaml(path, iterations=9, extra={"a": 3})
    assert config.definition_config["gemm_n4096"].given() == {}
    assert config.definition_config["gemm_n4096"].extra == {"b": 2}


def test_a_ratio_overridden_with_none_beats_the_section():
    config = BenchmarkConfig.default(required_matched_ratio=None)
    assert config.resolve_eval_config(MOE).required_matched_ratio is None


def test_extra_merges_key_by_key_through_all_levels(write_yaml):
    path = write_yaml("extra: {a: 0, b: 0, c: 0}\nop_type_config: {gemm: {extra: {b: 1, c: 1}}}\n")
    config = BenchmarkConfig.from_yaml(path, extra={"c": 2})
    assert config.resolve_eval_config(GEMM).extra == {"a": 0, "b": 1, "c": 2}
    assert config.extra == {"a": 0, "b": 0, "c": 2}


def test_every_value_tells_its_origin(write_yaml):
    text = "atol: 0.1\nop_type_config: {gemm: {rtol: 0.5}}\ndefinition_config: {gemm_n4096: {extra: {k: 1}}}\n"
    config = BenchmarkConfig.from_yaml(write_yaml(text), iterations=9)
    origins = config.resolve_eval_config(GEMM).origins
    assert origins["atol"] == "my.yaml"
    assert origins["rtol"] == "my.yaml: op_type_config.gemm"
    assert origins["extra.k"] == "my.yaml: definition_config.gemm_n4096"
    assert (origins["iterations"], origins["warmup_runs"]) == ("override", "default")
    bundled = BenchmarkConfig.default().resolve_eval_config(MOE).origins
    assert bundled["required_matched_ratio"] == "eval_config.yaml: op_type_config.moe"


def test_system_fields_tell_their_origin(write_yaml):
    origins = BenchmarkConfig.from_yaml(write_yaml("timeout_seconds: 5\n"), seed=7, extra={"k": 1}).origins()
    assert (origins["timeout_seconds"], origins["seed"], origins["devices"]) == ("my.yaml", "override", "default")
    assert origins["extra.k"] == "override"


@pytest.mark.parametrize("key", ["dsa_paged", "dsa-paged"])
@pytest.mark.parametrize("op_type", ["dsa_paged", "dsa-paged"])
def test_both_spellings_of_an_op_type_match(key, op_type):
    config = BenchmarkConfig(op_type_config={key: EvalConfig(rtol=0.5)})
    assert config.resolve_eval_config(SimpleNamespace(name="dsa", op_type=op_type)).rtol == 0.5


def test_one_op_type_in_two_spellings_is_refused():
    problems = problems_of(lambda: BenchmarkConfig(op_type_config={"dsa_paged": {}, "dsa-paged": {}}))
    assert len(problems) == 1
    assert "two spellings" in problems[0]


def test_unknown_keys_are_refused_with_place_and_nearest_name(write_yaml):
    path = write_yaml("op_type_config:\n  moe:\n    itertions: 5\nuse_isolated_runer: true\n")
    problems = problems_of(lambda: BenchmarkConfig.from_yaml(path))
    assert problems == [
        f"{path}: op_type_config.moe.itertions (line 3): unknown key; did you mean 'iterations'?",
        f"{path}: use_isolated_runer (line 4): unknown key; did you mean 'use_isolated_runner'?",
    ]


def test_problems_of_file_and_overrides_are_told_together(write_yaml):
    path = write_yaml("iterations: 0\nrtol: x\n")
    problems = problems_of(lambda: BenchmarkConfig.from_yaml(path, atol=-1, wormup_runs=1))
    assert [problem.split(":")[0] for problem in problems] == [str(path), str(path), "override", "override"]
    assert "did you mean 'warmup_runs'?" in problems[3]


def test_the_constructor_names_the_nearest_key():
    problems = problems_of(lambda: BenchmarkConfig(itertions=5, op_type_config={"moe": {"rtl": 1}}))
    assert problems == [
        "BenchmarkConfig: op_type_config.moe.rtl: unknown key; did you mean 'rtol'?",
        "BenchmarkConfig: itertions: unknown key; did you mean 'iterations'?",
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"warmup_runs": -1},
        {"iterations": 0},
        {"iterations": 2.5},
        {"iterations": "often"},
        {"iterations": True},
        {"iterations": 10**20},
        {"iterations": np.bool_(True)},
        {"num_trials": 0},
        {"precision": 0},
        {"precision": -0.01},
        {"precision": float("nan")},
        {"precision": 0.51},
        {"precision": True},
        {"rtol": -0.1},
        {"atol": float("nan")},
        {"atol": float("inf")},
        {"required_matched_ratio": 0},
        {"required_matched_ratio": 1.01},
        {"timeout_seconds": 0},
        {"timeout_seconds": None},
        {"timeout_seconds": float("inf")},
        {"seed": -1},
        {"seed": 2**63},
        {"worker_memory_gb": 1e300},
        {"worker_memory_gb": 0},
        {"time_budget_s": 0},
        {"definitions": "gemm"},
        {"definitions": []},
        {"extra": {"when": object}},
        {"op_type_config": {"moe": 3}},
    ],
    ids=str,
)
def test_wrong_values_raise_a_validation_error(values):
    (name,) = values
    assert [name in problem for problem in problems_of(lambda: BenchmarkConfig(**values))] == [True]


@pytest.mark.parametrize("values", [{"warmup_runs": 0}, {"required_matched_ratio": 1}, {"precision": 0.5}], ids=str)
def test_the_ends_of_ranges_are_accepted(values):
    assert BenchmarkConfig(**values).model_fields_set == set(values)


def test_numbers_of_numpy_are_taken():
    config = BenchmarkConfig(iterations=np.int64(5), rtol=np.float32(0.5), extra={"share": np.float64(0.25)})
    assert (config.iterations, config.rtol, config.extra) == (5, 0.5, {"share": 0.25})


def test_numbers_as_yaml_1_1_reads_them_are_understood(write_yaml):
    config = BenchmarkConfig.from_yaml(write_yaml("rtol: 1e-3\ndevices: [0, 1]\nextra: {shape: [1, 2]}\n"))
    assert (config.rtol, config.devices, config.extra) == (1e-3, ["0", "1"], {"shape": [1, 2]})


def test_tuples_in_extra_become_lists():
    assert BenchmarkConfig(extra={"shape": (1, (2, 3))}).extra == {"shape": [1, [2, 3]]}


@pytest.mark.parametrize("text", ["", "# nothing\n", "op_type_config:\nextra:\n", "op_type_config: {moe: }\n"])
def test_empty_files_and_sections_say_nothing(write_yaml, text):
    config = BenchmarkConfig.from_yaml(write_yaml(text))
    assert config.resolve_eval_config(MOE) == BenchmarkConfig().resolve_eval_config(MOE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1\nb: 2\n", "line 2"),
        ("- a\n- b\n", "line 1: a mapping of keys to values is needed, this is a list"),
        ("rtol: 0.1\natol: 0.1\nrtol: 0.2\n", "rtol (line 3): this key stands on line 1 already"),
        ("a: 1\nb: \x07\n", "line 2: this is not YAML: special characters are not allowed"),
        ("a: !!python/name:os.system\n", "line 1"),
        ("a: 1\n---\nb: 2\n", "line 2"),
    ],
)
def test_files_that_hold_no_mapping_are_refused_with_their_line(write_yaml, text, expected):
    path = write_yaml(text)
    with pytest.raises(ConfigError) as caught:
        BenchmarkConfig.from_yaml(path)
    assert str(caught.value).startswith(str(path))
    assert expected in str(caught.value)


def test_a_missing_or_binary_file_is_refused(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"a: 1\nb: \xff\xfe\n")
    with pytest.raises(ConfigError, match=r"binary\.yaml: line 2: this is not UTF-8"):
        BenchmarkConfig.from_yaml(tmp_path / "binary.yaml")
    with pytest.raises(ConfigError, match=r"none\.yaml: there is no such file"):
        BenchmarkConfig.from_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        BenchmarkConfig.from_yaml(tmp_path)


def test_a_yaml_alias_that_contains_itself_is_refused_not_followed_for_ever(write_yaml):
    path = write_yaml("extra: &loop {a: *loop}\n")
    with pytest.raises(ConfigError, match="this is not YAML: a value contains itself"):
        BenchmarkConfig.from_yaml(path)


def test_keys_that_are_no_text_are_refused_with_their_place(write_yaml):
    path = write_yaml("1: 2\nop_type_config: {3: {}}\n")
    assert len(problems_of(lambda: BenchmarkConfig.from_yaml(path))) == 2


def test_digest_and_equality_are_of_the_values_not_of_their_origins():
    given = BenchmarkConfig(iterations=50, rtol=0.01).resolve_eval_config(GEMM)
    default = BenchmarkConfig().resolve_eval_config(GEMM)
    assert given == default
    assert hash(given) == hash(default)
    assert given.digest() == default.digest() != BenchmarkConfig(iterations=51).resolve_eval_config(GEMM).digest()
    assert given.origins != default.origins


def test_a_copy_with_an_update_counts_as_an_override():
    config = BenchmarkConfig(definition_config={"gemm_n4096": EvalConfig(iterations=7)})
    assert config.model_copy(update={"iterations": 9}).resolve_eval_config(GEMM).iterations == 9
    assert config.model_copy() == config
    with pytest.raises(ValidationError, match="did you mean 'iterations'"):
        config.with_overrides(itertions=9)


def test_a_config_survives_pickle_and_dump():
    config = BenchmarkConfig.default(iterations=9, op_type_config={"gemm": EvalConfig(rtol=0.5)})
    assert pickle.loads(pickle.dumps(config)) == config
    again = BenchmarkConfig(**config.model_dump())
    assert again.resolve_eval_config(MOE) == config.resolve_eval_config(MOE)
    assert again.resolve_eval_config(GEMM) == config.resolve_eval_config(GEMM)


def test_section_names_of_the_user_are_told_with_their_place_and_bundled_ones_are_not(write_yaml):
    config = BenchmarkConfig.default(definition_config={"x": EvalConfig()})
    assert [*config.section_places("op_type_config", users_only=True)] == []
    assert [*config.section_places("definition_config", users_only=True)] == [("override: definition_config.x", "x")]
    config = BenchmarkConfig.from_yaml(write_yaml("op_type_config: {moe: {rtol: 1}}\n"))
    assert [*config.section_places("op_type_config", users_only=True)] == [("my.yaml: op_type_config.moe", "moe")]
