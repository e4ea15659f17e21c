"""The example of an environment for reinforcement learning: a wrong answer earns nothing."""

from unittest.mock import Mock

import pytest

from examples.rl_environment import KernelEnvironment, main
from flashinfer_bench.errors import ConfigError, TaskFailed
from tests.kit.documents import CHECKOUT

pytestmark = pytest.mark.cpu


def test_an_episode_ends_with_a_reward(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    main(CHECKOUT / "flashinfer-trace", "rmsnorm_h4096", devices=["cpu"])
    *_, wrong, right = (line for line in capsys.readouterr().out.splitlines() if line.startswith("reward "))
    assert wrong.startswith("reward 0.00 (counts: True, over: False): INCORRECT_NUMERICAL")
    assert "over: True): PASSED" in right
    assert not right.startswith("reward 0.00")


@pytest.mark.parametrize(
    ("submit", "result", "beginning", "counts"),
    [
        (ConfigError("no"), None, "invalid", True),
        (None, TaskFailed("lost"), "no verdict", False),
        (None, TimeoutError("late"), "no verdict", False),
    ],
)
def test_a_step_without_a_verdict_earns_nothing(submit, result, beginning, counts):
    engine, definition = Mock(), Mock()
    definition.name = "rows"
    engine.submit.side_effect = submit
    engine.submit.return_value.result.side_effect = result
    observation, reward, is_over, does_count = KernelEnvironment(engine, definition, turns=1).step("def run(): ...")
    assert observation.startswith(beginning)
    assert (reward, is_over, does_count) == (0.0, True, counts)
    assert engine.submit.return_value.cancel.called == (result is not None)


def test_the_example_is_short():
    assert len((CHECKOUT / "examples" / "rl_environment.py").read_text().splitlines()) <= 80
