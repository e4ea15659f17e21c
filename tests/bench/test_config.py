"""Settings: accepted and refused values, which value wins, and the source of each value."""

import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import ValidationError

from flashinfer_bench.bench.config import BenchmarkConfig, EvalConfig, describe_problems
from flashinfer_bench.bench.evaluator_record import known_op_types
from tests.conftest import CHECKOUT

GUIDE = (CHECKOUT / "docs" / "configuration.md").read_text()


def problems_of(load):
    with pytest.raises(ValidationError) as caught:
        load()
    return describe_problems(caught.value)


def test_layers_are_kept_by_copies_and_defaults_of_a_command_lie_below_the_users_values():
    """`tests/golden/promised/test_golden_config.py` has the order of sections and overrides."""
    wanted = SimpleNamespace(name="d", op_type="some_op")
    lower = BenchmarkConfig(iterations=5, extra={"a": 1}, definition_config={"d": EvalConfig(rtol=0.5)})
    upper = lower.with_overrides(op_type_config={"some-op": EvalConfig(rtol=0.1, extra={"b": 2}), "e": EvalConfig()})
    config = upper.with_defaults("compare", iterations=9, warmup_runs=3)
    for one in (config, pickle.loads(pickle.dumps(config))):
        found = one.resolve_eval_config(wanted)
        assert (found.iterations, found.warmup_runs, found.rtol, found.extra) == (5, 3, 0.1, {"a": 1, "b": 2})
        origins = {"warmup_runs": "compare", "atol": "default", "rtol": "override: op_type_config.some-op"}
        assert origins.items() <= found.origins.items()
    above = lower.with_overrides(rtol=0.7)  # a later source beats each section before it
    assert (above.resolve_eval_config(wanted).rtol, above.definition_config["d"].rtol) == (0.7, None)
    plain = lower.resolve_eval_config(wanted)
    for more, is_equal in (({}, True), ({"iterations": 6}, False)):
        top = lower.with_overrides(**more)
        again = BenchmarkConfig(**top.model_dump(exclude_unset=True)).resolve_eval_config(wanted)
        assert again == top.resolve_eval_config(wanted)
        assert (again == plain) is (again.digest() == plain.digest()) is (again.values() == plain.values()) is is_equal
        assert not is_equal or hash(again) == hash(plain)


def test_names_of_the_public_package_are_read_with_a_warning_and_copies_and_assignments_are_checked():
    with pytest.warns(DeprecationWarning, match=r"log_dir has no effect|belongs into extra") as warned:
        config = BenchmarkConfig(log_dir="/x", sampling_tvd_threshold=0.3)
    assert ([one.filename for one in warned], config.extra) == ([__file__] * 2, {"sampling_tvd_threshold": 0.3})
    copy = config.model_copy(update={"l2_cache": "warm"})
    copy.cuda_graphs = False
    assert (config.timing_key(), copy.timing_key()) == (None, "warm L2, no graphs")
    assert (copy.origins()["l2_cache"], copy.origins()["seed"]) == ("override", "default")
    with pytest.raises(ValidationError):
        copy.iterations = 0


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
