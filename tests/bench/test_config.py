"""Settings: what is read and refused, which value wins, and where each value comes from."""

import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from flashinfer_bench.bench.config import BenchmarkConfig, EvalConfig, describe_problems
from flashinfer_bench.bench.evaluator_record import known_op_types
from flashinfer_bench.errors import ConfigError
from tests.conftest import CHECKOUT

MOE = SimpleNamespace(name="moe_e8", op_type="moe")
GUIDE = (CHECKOUT / "docs" / "configuration.md").read_text()


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


FIELDS = {
    "warmup_runs": st.integers(0, 9),
    "iterations": st.integers(1, 9),
    "rtol": st.floats(0, 9, exclude_min=True),
    "required_matched_ratio": st.none() | st.floats(0.1, 1),
}
DEFAULTS = {"warmup_runs": 10, "iterations": 50, "rtol": 0.01, "required_matched_ratio": None}
VALUES = st.fixed_dictionaries({}, optional=FIELDS)
SECTION = st.tuples(VALUES, st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3))
WANTED = SimpleNamespace(name="d", op_type="some_op")


def as_arguments(top, op_type, definition):
    sections = {
        "op_type_config": {"some-op": EvalConfig(**op_type[0], extra=op_type[1]), "other": EvalConfig(rtol=77)},
        "definition_config": {"d": EvalConfig(**definition[0], extra=definition[1]), "e": EvalConfig(rtol=78)},
    }
    return {**top[0], "extra": top[1], **sections}


def agree(config, layers):
    """Tell whether each value is that of the last layer which gives it, and has that layer's origin."""
    resolved = config.resolve_eval_config(WANTED)
    values, extra = dict(DEFAULTS), {}
    origins = dict.fromkeys(DEFAULTS, "default")
    for origin, (given_values, given_extra) in layers:
        values, extra = {**values, **given_values}, {**extra, **given_extra}
        origins |= dict.fromkeys([*given_values, *(f"extra.{key}" for key in given_extra)], origin)
    found = {name: resolved.origins[name] for name in origins}
    return ({name: getattr(resolved, name) for name in DEFAULTS}, resolved.extra, found) == (values, extra, origins)


def named(origin, sections):
    levels = ("", ": op_type_config.some-op", ": definition_config.d")
    return [(origin + level, section) for level, section in zip(levels, sections, strict=True)]


@settings(max_examples=60, deadline=None)
@given(VALUES, st.tuples(*[SECTION] * 3), st.tuples(*[SECTION] * 3))
def test_the_last_layer_that_gives_a_value_wins_and_is_its_origin(defaults, lower, upper):
    config = BenchmarkConfig(**as_arguments(*lower))
    assert agree(config, named("BenchmarkConfig", lower))
    above = config.with_overrides(**as_arguments(*upper)).with_defaults("compare", **defaults)
    layers = [("compare", (defaults, {})), *named("BenchmarkConfig", lower), *named("override", upper)]
    assert agree(above, layers)
    assert agree(pickle.loads(pickle.dumps(above)), layers)
    top = config.with_overrides(**upper[0][0], extra=upper[0][1])  # a config that says the same as plain data
    again = BenchmarkConfig(**top.model_dump(exclude_unset=True)).resolve_eval_config(WANTED)
    assert again == top.resolve_eval_config(WANTED)
    plain = config.resolve_eval_config(WANTED)
    assert (again.digest() == plain.digest()) == (again.values() == plain.values()) == (again == plain)
    assert (hash(again) == hash(plain)) or again != plain


def test_sections_are_those_of_all_sources_and_have_places(write_yaml):
    text = "op_type_config: {moe: {rtol: 1}}\ndefinition_config: {gemm_n4096: {extra: {a: 1, b: 2}}}\n"
    config = BenchmarkConfig.from_yaml(write_yaml(text), extra={"a": 3})
    assert config.definition_config["gemm_n4096"].model_dump() == {"extra": {"b": 2}}
    assert [*config.section_places("op_type_config", users_only=True)] == [("my.yaml: op_type_config.moe", "moe")]
    assert [*BenchmarkConfig.default().section_places("op_type_config", users_only=True)] == []


def test_all_problems_are_told_at_once_with_place_line_and_nearest_name(write_yaml):
    path = write_yaml("op_type_config:\n  moe:\n    itertions: 5\n1: 2\nrtol: x\n")
    *told, fourth, fifth = problems_of(lambda: BenchmarkConfig.from_yaml(path, atol=-1, wormup_runs=1))
    assert len(told) == 3
    assert f"{path}: op_type_config.moe.itertions (line 3): unknown key; did you mean 'iterations'?" in told
    assert any(line.startswith(f"{path}: rtol (line 5): ") for line in told)
    assert fourth.startswith("override: atol: ")
    assert fifth == "override: wormup_runs: unknown key; did you mean 'warmup_runs'?"
    with pytest.raises(ValidationError, match="did you mean 'iterations'"):
        BenchmarkConfig().with_overrides(itertions=9)


WRONG = {
    "iterations": ["often", 10**20, np.bool_(True)],
    "precision": [0, True],
    "timeout_seconds": [None, float("inf")],
    "seed": [2**63],
    "worker_memory_gb": [1e300],
    "time_budget_s": [0],
    "definitions": ["gemm"],
    "extra": [{"when": object}],
    "op_type_config": [{"moe": 3}],
    "evaluator_modules": [["./mine.py"], ["mine.py/"], [""], ["my-module"], ["a..b"], ["a:"]],
}
"""Besides those of `tests/golden/promised/test_golden_config.py`."""


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_wrong_values_raise_a_validation_error(name, value):
    (problem,) = problems_of(lambda: BenchmarkConfig(**{name: value}))
    assert name in problem


def test_ends_of_ranges_numbers_of_numpy_and_yaml_1_1_and_tuples_are_taken(write_yaml):
    BenchmarkConfig(warmup_runs=0, required_matched_ratio=1, precision=0.5, iterations="auto")
    config = BenchmarkConfig(
        iterations=np.int64(5), rtol=np.float32(0.5), extra={"a": np.float64(0.25), "b": (1, (2,))}
    )
    assert (config.iterations, config.rtol, config.extra) == (5, 0.5, {"a": 0.25, "b": [1, [2]]})
    config = BenchmarkConfig.from_yaml(write_yaml("rtol: 1e-3\ndevices: [0, 1]\nsandbox: off\n"))
    assert (config.rtol, config.devices, config.sandbox) == (1e-3, ["0", "1"], "off")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a: [1\nb: 2\n", "line 2"),
        (b"- a\n- b\n", "line 1: a mapping of keys to values is needed, this is a list"),
        (b"a: !!python/name:os.system\n", "line 1"),
        (b"extra: &loop {a: *loop}\n", "this is not YAML: a value contains itself"),
        (b"a: 1\nb: \xff\xfe\n", "this is not UTF-8"),
    ],
)
def test_files_that_hold_no_mapping_are_refused_with_their_line(tmp_path, content, expected):
    (tmp_path / "my.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=f"{tmp_path}/my.yaml.*{expected}"):
        BenchmarkConfig.from_yaml(tmp_path / "my.yaml")


def test_the_guide_has_an_example_and_names_every_key_and_the_known_op_types(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text(re.search(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)[1])
    config = BenchmarkConfig.from_yaml(file)
    assert (config.iterations, config.definition_config["rmsnorm_h4096"].rtol) == (100, 0.001)
    keys = "".join(row.split("|")[1] for row in GUIDE.splitlines() if row.startswith("|"))
    assert [name for name in BenchmarkConfig.model_fields if f"`{name}`" not in keys] == []
    assert f"({', '.join(known_op_types())})" in GUIDE
