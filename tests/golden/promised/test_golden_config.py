"""Settings: defaults, which value wins, where each comes from, and what is refused.

Spec: spec/engine.md ("Configuration"), spec/source/run-benchmark.md ("Benchmark Config"); docs/configuration.md (the
tables, "Which value wins", "What is refused", "Quick looks"), docs/trace-set.md (`tolerances.yaml`),
docs/migration.md ("What differs: In Python").
"""

from __future__ import annotations

import json
import re

import pytest
from pydantic import ValidationError

from flashinfer_bench.bench import BenchmarkConfig, EvalConfig
from flashinfer_bench.data import Definition
from tests.golden.face import BUNDLED, Face, SmallSet, assert_subset, spec

EVAL = {
    "warmup_runs": 10,
    "iterations": 50,
    "num_trials": 3,
    "precision": 0.015,
    "rtol": 0.01,
    "atol": 0.01,
    "required_matched_ratio": None,
    "norm_rule": True,
    "lost_rows_rule": True,
    "regimes_rule": True,
    "power_rule": True,
    "extra": {},
}
SYSTEM = {
    "definitions": None,
    "op_types": None,
    "solutions": None,
    "authors": None,
    "workloads": None,
    "devices": None,
    "timeout_seconds": 300,
    "time_budget_s": 1,
    "baseline_budget_s": 2,
    "profile_baseline": True,
    "fresh_baselines": False,
    "interpret": False,
    "use_isolated_runner": False,
    "seed": None,
    "worker_memory_gb": None,
    "build_jobs": None,
    "quick": False,
    "l2_cache": "cold",
    "clock": "auto",
    "cuda_graphs": True,
    "keep_samples": False,
    "sandbox": "auto",
    "cluster": None,
    "cluster_address": None,
    "shared_blobs": False,
    "trust_definitions": False,
    "evaluator_modules": [],
}


def make_definition(name="rms", op_type="rmsnorm"):
    tensor = {"shape": ["n"], "dtype": "float32"}
    return Definition(
        name=name,
        op_type=op_type,
        axes={"n": {"type": "const", "value": 4}},
        inputs={"x": tensor},
        outputs={"y": tensor},
        reference="def run(x):\n    return x\n",
    )


def resolve(config, **which):
    return config.resolve_eval_config(make_definition(**which))


def test_the_constructor_has_the_documented_defaults():
    config = BenchmarkConfig()
    assert {key: getattr(config, key) for key in EVAL | SYSTEM} == EVAL | SYSTEM
    assert config.op_type_config == config.definition_config == {}
    resolved = resolve(config)
    assert {key: getattr(resolved, key) for key in EVAL} == EVAL


def test_default_loads_the_bundled_file():
    config = BenchmarkConfig.default()
    assert resolve(config, op_type="moe").required_matched_ratio == 0.95
    sampling = {"sampling_validation_trials": 100, "sampling_tvd_threshold": 0.2}
    assert resolve(config, op_type="sampling").extra == sampling
    assert resolve(config).required_matched_ratio is None
    assert set(config.op_type_config) == {"moe", "sampling"}


FILE = """
iterations: 100
timeout_seconds: 60
rtol: 0.5
extra: {a: 1, b: 1}
op_type_config:
  rmsnorm: {rtol: 0.25, atol: 0.25, extra: {b: 2, c: 2}}
definition_config:
  rms: {atol: 0.125, extra: {c: 3}}
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(FILE)
    return path


def test_a_definition_beats_its_op_type_and_that_the_top_level(path):
    resolved = resolve(BenchmarkConfig.from_yaml(path))
    assert (resolved.iterations, resolved.rtol, resolved.atol) == (100, 0.25, 0.125)
    assert resolved.extra == {"a": 1, "b": 2, "c": 3}
    other = resolve(BenchmarkConfig.from_yaml(path), name="other", op_type="gemm")
    assert (other.rtol, other.atol, other.extra) == (0.5, 0.01, {"a": 1, "b": 1})
    assert BenchmarkConfig.from_yaml(path).op_type_config.keys() == {"rmsnorm"}  # the bundled file is not read


def test_overrides_beat_sections_and_can_be_read(path):
    config = BenchmarkConfig.from_yaml(path, iterations=7, rtol=1e-3, extra={"c": 9})
    assert (config.iterations, config.rtol) == (7, 1e-3)
    resolved = resolve(config)
    assert (resolved.iterations, resolved.rtol, resolved.atol) == (7, 1e-3, 0.125)
    assert resolved.extra == {"a": 1, "b": 2, "c": 9}
    assert resolve(BenchmarkConfig.default(required_matched_ratio=0.5), op_type="moe").required_matched_ratio == 0.5


def test_an_assigned_value_is_an_override(path):
    config = BenchmarkConfig.from_yaml(path)
    config.rtol = 0.0625
    assert resolve(config).rtol == 0.0625
    with pytest.raises(ValidationError):
        config.iterations = 0


def test_sections_in_python():
    config = BenchmarkConfig(
        op_type_config={"moe": EvalConfig(required_matched_ratio=0.9)},
        definition_config={"rms": EvalConfig(rtol=0.001)},
    )
    assert resolve(config).rtol == 0.001
    assert resolve(config, name="m", op_type="moe").required_matched_ratio == 0.9


def test_every_value_has_an_origin(path):
    resolved = resolve(BenchmarkConfig.from_yaml(path, num_trials=2))
    origins = {key: resolved.origins[key] for key in ("iterations", "rtol", "atol", "warmup_runs", "num_trials")}
    assert origins["warmup_runs"] == "default"
    assert "my.yaml" in origins["iterations"]
    assert "op_type_config" in origins["rtol"]
    assert "definition_config" in origins["atol"]
    assert len({*origins.values()}) == 5


@pytest.mark.parametrize(
    "more",
    [
        {"iterations": 0},
        {"iterations": 2.5},
        {"iterations": True},
        {"warmup_runs": -1},
        {"num_trials": 0},
        {"rtol": 0},
        {"atol": -1},
        {"atol": float("nan")},
        {"rtol": float("inf")},
        {"required_matched_ratio": 0},
        {"required_matched_ratio": 1.5},
        {"timeout_seconds": 0},
        {"precision": 0.6},
        {"definitions": []},
        {"sandbox": "loose"},
        {"l2_cache": "lukewarm"},
        {"clock": "sundial"},
        {"seed": -1},
        {"iteratoins": 5},
        {"op_type_config": {"moe": {"iteratoins": 5}}},
    ],
)
def test_what_cannot_be_is_a_validation_error(more):
    with pytest.raises(ValidationError):
        BenchmarkConfig(**more)


def test_settings_of_the_relative_are_taken_with_a_warning():
    for more in ({"log_dir": "/tmp/logs"}, {"sampling_validation_trials": 5}, {"sampling_tvd_threshold": 0.3}):
        with pytest.warns(DeprecationWarning, match=next(iter(more))):
            config = BenchmarkConfig(**more)
    assert resolve(config, op_type="sampling").extra == {"sampling_tvd_threshold": 0.3}


@pytest.fixture(scope="module")
def here(tmp_path_factory, shared_cache):
    return Face(shared_cache, tmp_path_factory.mktemp("config"))


def show(here, *words):
    done = here("config", "show", *words, "--format", "json")
    assert done.code == 0, done
    return done.json["settings"]


def test_config_show_tells_values_and_origins(here):
    settings = show(here)
    for key, value in SYSTEM.items():
        assert settings[key]["value"] == value
    name = "moe_fp8_block_scale_ds_routing_topk4_ng4_kg2_e8_h256_i256"
    settings = show(here, "--local", BUNDLED, "--definition", name, "--rtol", "0.001", "--timeout", "7")
    assert settings["required_matched_ratio"]["value"] == 0.95
    assert "eval_config.yaml" in settings["required_matched_ratio"]["origin"]
    assert settings["iterations"] == {"value": 50, "origin": "default"}
    assert (settings["rtol"]["value"], settings["timeout_seconds"]["value"]) == (0.001, 7)
    assert settings["rtol"]["origin"] == settings["timeout_seconds"]["origin"] != "default"


def test_tolerances_of_a_set_lie_between_the_bundled_file_and_the_user(here, tmp_path):
    small = SmallSet(tmp_path / "set")
    tensor = spec(["n"], "float32")
    small.definition("double", "def run(x):\n    return x * 2\n", {"x": tensor}, {"y": tensor}, op_type="moe")
    small.workload("double", "w1")
    small.solution("double", "right", "def run(x):\n    return x * 2\n")
    (small.root / "tolerances.yaml").write_text("double: {rtol: 0.02, atol: 0.001, required_matched_ratio: 0.98}\n")
    words = ("--local", small.root, "--definition", "double")
    settings = show(here, *words)
    assert (settings["rtol"]["value"], settings["required_matched_ratio"]["value"]) == (0.02, 0.98)
    assert "tolerances.yaml" in settings["rtol"]["origin"]
    assert show(here, *words, "--rtol", "0.5")["rtol"]["value"] == 0.5
    (tmp_path / "mine.yaml").write_text("rtol: 0.25\n")
    settings = show(here, *words, "--config", tmp_path / "mine.yaml")
    assert (settings["rtol"]["value"], settings["atol"]["value"]) == (0.25, 0.001)


def test_flags_are_the_settings(here):
    words = (
        "--warmup-runs 1 --iterations 2 --num-trials 4 --precision 0.1 --rtol 0.2 --atol 0.3 "
        "--required-matched-ratio 0.4 --timeout 5 --seed 6 --worker-memory-gb 7 --build-jobs 8 --sandbox off "
        "--l2-cache warm --clock cuda_events --no-cuda-graphs --keep-samples --no-norm-rule --no-lost-rows-rule "
        "--no-regimes-rule --no-power-rule --trust-definitions --use-isolated-runner --interpret --fresh-baselines "
        "--no-profile-baseline --definitions a b --op-types c --solutions d,e --authors f --devices cpu"
    ).split()
    found = {key: entry["value"] for key, entry in show(here, *words).items()}
    expected = {
        "warmup_runs": 1, "iterations": 2, "num_trials": 4, "precision": 0.1, "rtol": 0.2, "atol": 0.3,
        "required_matched_ratio": 0.4, "timeout_seconds": 5, "seed": 6, "worker_memory_gb": 7, "build_jobs": 8,
        "sandbox": "off", "l2_cache": "warm", "clock": "cuda_events", "cuda_graphs": False, "keep_samples": True,
        "norm_rule": False, "lost_rows_rule": False, "regimes_rule": False, "power_rule": False,
        "trust_definitions": True, "use_isolated_runner": True, "interpret": True, "fresh_baselines": True,
        "profile_baseline": False, "definitions": ["a", "b"], "op_types": ["c"], "solutions": ["d", "e"],
        "authors": ["f"], "devices": ["cpu"],
    }  # fmt: skip
    assert_subset(expected, found)
    quick = {key: entry["value"] for key, entry in show(here, "--quick").items()}
    assert_subset({"quick": True, "num_trials": 1, "warmup_runs": 3, "iterations": 10, "precision": 0.05}, quick)
    assert show(here, "--quick", "--iterations", "30")["iterations"]["value"] == 30


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("iteratoins: 5\n", ("iteratoins", "iterations", 1)),
        ("\niterations: 0\n", ("iterations", 2)),
        ("iterations: 5\niterations: 6\n", ("iterations", 2)),
        ("definition_config:\n  rmsnorm_h4095: {rtol: 0.1}\n", ("rmsnorm_h4095", "rmsnorm_h4096")),
        ("op_type_config:\n  rmsnrm: {rtol: 0.1}\n", ("rmsnrm", "rmsnorm")),
        ("op_type_config:\n  moe: {rtoll: 0.1}\n", ("rtoll", "rtol", 2)),
        ("op_type_config: {sampling: {extra: {sampling_tvd_threshold: high}}}\n", ("sampling_tvd_threshold",)),
    ],
)
def test_a_mistake_in_a_file_is_misuse_with_its_line_and_the_nearest_name(here, tmp_path, text, parts):
    (tmp_path / "bad.yaml").write_text(text)
    done = here("run", "--local", BUNDLED, "--config", tmp_path / "bad.yaml", "--dry-run")
    assert done.code == 2, done
    joined = done.told.replace("\n", "")
    for part in ("bad.yaml", *parts):
        assert part in joined if isinstance(part, str) else re.search(rf"(:|line ){part}\b", joined)
    assert "Traceback" not in done.told


def test_all_mistakes_are_told_at_once(here, tmp_path):
    (tmp_path / "bad.yaml").write_text("iteratoins: 5\nrtol: -1\n")
    done = here("config", "show", "--config", tmp_path / "bad.yaml")
    assert (done.code, "iteratoins" in done.text, "rtol" in done.text) == (2, True, True)


def test_json_files_of_settings_are_yaml(here, tmp_path):
    (tmp_path / "mine.yaml").write_text(json.dumps({"iterations": 12}))
    assert show(here, "--config", tmp_path / "mine.yaml")["iterations"]["value"] == 12
