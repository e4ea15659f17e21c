"""Settings: accepted and refused values, which value wins, and the source of each value."""

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
from tests.conftest import CHECKOUT

GUIDE = (CHECKOUT / "docs" / "configuration.md").read_text()


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
    """Return whether each value is that of the last layer with a value, and has that layer's origin."""
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


@settings(max_examples=40, deadline=None)
@given(VALUES, st.tuples(*[SECTION] * 3), st.tuples(*[SECTION] * 3))
def test_the_last_layer_that_gives_a_value_wins_and_is_its_origin(defaults, lower, upper):
    config = BenchmarkConfig(**as_arguments(*lower))
    assert agree(config, named("BenchmarkConfig", lower))
    above = config.with_overrides(**as_arguments(*upper)).with_defaults("compare", **defaults)
    layers = [("compare", (defaults, {})), *named("BenchmarkConfig", lower), *named("override", upper)]
    assert agree(above, layers)
    assert agree(pickle.loads(pickle.dumps(above)), layers)
    top = config.with_overrides(**upper[0][0], extra=upper[0][1])  # a config with the same values as plain data
    again = BenchmarkConfig(**top.model_dump(exclude_unset=True)).resolve_eval_config(WANTED)
    assert again == top.resolve_eval_config(WANTED)
    plain = config.resolve_eval_config(WANTED)
    assert (again.digest() == plain.digest()) == (again.values() == plain.values()) == (again == plain)
    assert (hash(again) == hash(plain)) or again != plain


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
"""Besides the cases of `tests/golden/promised/test_golden_config.py`."""


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_wrong_values_raise_a_validation_error(name, value):
    (problem,) = problems_of(lambda: BenchmarkConfig(**{name: value}))
    assert name in problem


def test_the_guide_has_an_example_and_names_every_key_and_the_known_op_types(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text(re.search(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)[1])
    config = BenchmarkConfig.from_yaml(file)
    assert (config.iterations, config.definition_config["rmsnorm_h4096"].rtol) == (100, 0.001)
    keys = "".join(row.split("|")[1] for row in GUIDE.splitlines() if row.startswith("|"))
    assert [name for name in BenchmarkConfig.model_fields if f"`{name}`" not in keys] == []
    assert f"({', '.join(known_op_types())})" in GUIDE
