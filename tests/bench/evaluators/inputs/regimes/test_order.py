"""The order of calls on inputs of other regimes."""

import random
from collections import Counter

import pytest

from flashinfer_bench.bench.evaluators.inputs.regimes.choose import FOR_FLOATS, GATES, IN_ALL_JOBS, OTHERS, Regimes
from flashinfer_bench.bench.evaluators.inputs.regimes.order import put_in_order
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu


def test_any_regime_may_be_first_and_the_strongest_is_most_often():
    names = [*IN_ALL_JOBS, *OTHERS, *GATES[:2]]
    first = Counter(put_in_order(names, random.Random(seed))[0] for seed in range(3000))
    assert set(first) == set(names)
    assert first.most_common(1)[0][0] == "heavy_tails"
    assert first.most_common()[-1][0] == "larger"
    assert 0.2 < first["heavy_tails"] / 3000 < 0.34


def test_one_of_each_regime_comes_before_others_and_any_of_its_calls_may_be_that_one():
    calls = [("a", 0), ("a", 1), ("a", 2), ("b", 3), ("c", 4)]
    seen = set()
    for seed in range(60):
        ordered = put_in_order(calls, random.Random(seed), lambda call: call[0])
        assert sorted(ordered) == calls
        assert sorted(name for name, _ in ordered[:3]) == ["a", "b", "c"]
        seen |= {number for name, number in ordered[:3] if name == "a"}
    assert seen == {0, 1, 2}


def test_a_trial_of_slow_calls_may_have_any_regime_also_where_a_reference_asks_for_some():
    reference = "import torch\ndef run(x, gate):\n    return (torch.sigmoid(gate) * x).cumsum(0)\n"
    inputs = dict.fromkeys(("x", "gate"), "float32[n, m]")
    axes = {"n": None, "m": None}
    definition = make_definition(axes=axes, inputs=inputs, outputs={"y": "float32[n, m]"}, reference=reference)
    workload = make_workload(axes={"n": 8, "m": 8}, inputs={})
    first = Counter(Regimes(definition, workload, seed).choose(0, 1)[0] for seed in range(200))
    assert set(first) == {*IN_ALL_JOBS, *GATES, *FOR_FLOATS, "part_of_columns"}
    regimes = Regimes(definition, workload, 3)
    assert set(regimes.plan(3)) == set(regimes.names)
