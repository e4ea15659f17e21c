"""How the blocks of `compare` are judged and timed: in one trial, unless somebody says another number."""

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig, EvalConfig
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.examine.compare.measuring import TRIALS, for_blocks
from tests.kit import make_definition

CPU = Device("cpu", 0, "a CPU", "cpu")


@pytest.mark.parametrize(
    ("given", "trials"),
    [
        ({}, TRIALS),
        ({"iterations": 7}, TRIALS),
        ({"num_trials": 2}, 2),
        ({"op_type_config": {"test": EvalConfig(num_trials=4)}}, 4),
        ({"definition_config": {"double": EvalConfig(num_trials=5)}}, 5),
    ],
    ids=["nothing", "readings", "a flag", "an op type", "a definition"],
)
def test_a_block_has_one_trial_unless_the_user_says_otherwise(given, trials):
    definition = make_definition(op_type="test")
    found = for_blocks(BenchmarkConfig.default(**given), CPU).resolve_eval_config(definition)
    usual = BenchmarkConfig.default(**given).resolve_eval_config(definition)
    assert (found.num_trials, found.profile_baseline) == (trials, False)
    assert found.beyond(usual).keys() <= {"num_trials"}


def test_blocks_run_on_one_device():
    assert for_blocks(BenchmarkConfig.default(devices=["0", "1"]), CPU).devices == ["cpu"]
    assert for_blocks(BenchmarkConfig.default(), Device("cuda", 1, "a GPU", "GPU-1")).devices == ["GPU-1"]
