"""Keys of `extra` that an evaluator from outside declares: what is refused, and what is not."""

import pytest

from flashinfer_bench.bench.config_sources import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.evaluator import Evaluator
from flashinfer_bench.bench.evaluators.parameters import KnownParameters, find_wrong_parameters, read_parameters

DECLARED = {"max_bias": 0.02, "rounds": 3, "exact": False, "mode": "fast", "steps": (1, 2), "limit": float, "any": None}
ALONE = KnownParameters(frozenset(DECLARED), are_all=True)
PLACE = "my.yaml: op_type_config.mine"


def find(extra, known=ALONE):
    config = ResolvedEvalConfig(extra=extra, origins={f"extra.{key}": PLACE for key in extra})
    return find_wrong_parameters(config, "Mine", read_parameters(DECLARED), known)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("max_bias", "abc", "a number"),
        ("max_bias", True, "a number"),
        ("rounds", 2.5, "a whole number"),
        ("exact", 1, "true or false"),
        ("mode", 1, "text"),
        ("steps", 1, "a list"),
        ("limit", None, "a number"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_place(key, value, words):
    assert find({key: value}) == [f"{PLACE}: extra.{key} is {value!r}; Mine takes {words}"]


def test_values_of_the_declared_types_and_keys_of_others_are_taken():
    right = {"max_bias": 1, "rounds": 2, "exact": True, "mode": "", "steps": [], "limit": 0.5, "any": {"a": 1}}
    assert find(right) == []
    assert find({"summed_tolerance": True, "theirs": 1}, KnownParameters(ALONE.keys | {"theirs"})) == []


def test_an_unknown_key_is_refused_unless_another_evaluator_may_have_it():
    (line,) = find({"max_bais": 0.1})
    assert line.endswith("extra.max_bais is no parameter of Mine, nor of another evaluator; did you mean 'max_bias'?")
    (line,) = find({"zzz": 0.1})
    assert line.endswith("nor of another evaluator; Mine has max_bias, rounds, exact, mode, steps, limit, any")
    silent = KnownParameters(ALONE.keys, are_all=False)
    assert find({"zzz": 0.1}, silent) == []
    assert find({"max_bais": 0.1}, silent) != []


@pytest.mark.parametrize("declared", [["a"], {1: 2}, {"a": set()}, {"a": [object()]}, {"a": bytes}, {"a": object}])
def test_what_is_no_mapping_to_defaults_or_types_is_refused(declared):
    with pytest.raises(ValueError, match=r"is no mapping|is neither a default"):
        read_parameters(declared)


def test_an_evaluator_reads_what_is_given_and_else_its_default():
    class Mine(Evaluator):
        extra_keys = DECLARED

    given = ResolvedEvalConfig(extra={"max_bias": 0.5})
    assert [Mine.extra_value(given, key) for key in ("max_bias", "rounds", "limit")] == [0.5, 3, None]
