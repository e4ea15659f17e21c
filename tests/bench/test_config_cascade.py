"""Properties of the cascade: whatever the layers, each value is that of the last layer which gives it."""

from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.bench.config import BenchmarkConfig, EvalConfig
from flashinfer_bench.bench.config_sources import Source, resolve


def resolve_layers(sections):
    sources = [
        Source(str(n), {(): EvalConfig(**values, extra=extra).flat()}) for n, (values, extra) in enumerate(sections)
    ]
    return resolve(sources, "d", "", profile_baseline=True)


FIELDS = {
    "warmup_runs": st.integers(0, 9),
    "iterations": st.integers(1, 9),
    "rtol": st.floats(0, 9, exclude_min=True),
    "required_matched_ratio": st.none() | st.floats(0.1, 1),
}
VALUES = st.fixed_dictionaries({}, optional=FIELDS)
EXTRA = st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3)
SECTION = st.tuples(VALUES, EXTRA)
DEFAULTS = {"warmup_runs": 10, "iterations": 50, "rtol": 0.01, "required_matched_ratio": None}


def last_wins(sections):
    values, extra = dict(DEFAULTS), {}
    for given_values, given_extra in sections:
        values.update(given_values)
        extra.update(given_extra)
    return values, extra


def seen(resolved):
    return {name: getattr(resolved, name) for name in DEFAULTS}, resolved.extra


def as_arguments(top, op_type, definition):
    sections = {
        "op_type_config": {"some-op": EvalConfig(**op_type[0], extra=op_type[1]), "other": EvalConfig(rtol=77)},
        "definition_config": {"d": EvalConfig(**definition[0], extra=definition[1]), "e": EvalConfig(rtol=78)},
    }
    return {**top[0], "extra": top[1], **sections}


@settings(max_examples=60, deadline=None)
@given(st.lists(SECTION, max_size=5))
def test_the_last_layer_that_gives_a_value_wins_and_is_its_origin(sections):
    resolved = resolve_layers(sections)
    assert seen(resolved) == last_wins(sections)
    for name in DEFAULTS:
        givers = [str(number) for number, (values, _) in enumerate(sections) if name in values]
        assert resolved.origins[name] == (givers[-1] if givers else "default")
    for key in resolved.extra:
        assert resolved.origins[f"extra.{key}"] == [str(n) for n, (_, extra) in enumerate(sections) if key in extra][-1]


@settings(max_examples=60, deadline=None)
@given(*[SECTION] * 6)
def test_overrides_lie_on_top_of_the_whole_of_what_they_override(top, op, definition, top2, op2, definition2):
    config = BenchmarkConfig(**as_arguments(top, op, definition))
    above = config.with_overrides(**as_arguments(top2, op2, definition2))
    wanted = SimpleNamespace(name="d", op_type="some_op")
    assert seen(config.resolve_eval_config(wanted)) == last_wins([top, op, definition])
    assert seen(above.resolve_eval_config(wanted)) == last_wins([top, op, definition, top2, op2, definition2])


@settings(max_examples=60, deadline=None)
@given(SECTION, SECTION, SECTION, SECTION)
def test_top_level_overrides_leave_a_config_that_says_the_same_as_plain_data(top, op, definition, override):
    config = BenchmarkConfig(**as_arguments(top, op, definition)).with_overrides(**override[0], extra=override[1])
    again = BenchmarkConfig(**config.model_dump(exclude_unset=True))
    wanted = SimpleNamespace(name="d", op_type="some_op")
    assert again.resolve_eval_config(wanted) == config.resolve_eval_config(wanted)


@settings(max_examples=40, deadline=None)
@given(SECTION, SECTION)
def test_digests_are_equal_exactly_when_the_values_are(one, two):
    first, second = (resolve_layers([section]) for section in (one, two))
    assert (first.digest() == second.digest()) == (seen(first) == seen(second)) == (first == second)


@settings(max_examples=60, deadline=None)
@given(VALUES, *[SECTION] * 3)
def test_other_defaults_lie_below_all_that_is_given(defaults, top, op, definition):
    config = BenchmarkConfig(**as_arguments(top, op, definition)).with_defaults("compare", **defaults)
    wanted = SimpleNamespace(name="d", op_type="some_op")
    assert seen(config.resolve_eval_config(wanted)) == last_wins([(defaults, {}), top, op, definition])
