"""The process that imports evaluators from outside and answers one question."""

import sys

import pytest

from flashinfer_bench.bench import context
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluators.plug_ins import PlugIn
from flashinfer_bench.bench.runner import lookup
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError
from tests.kit import make_definition

pytestmark = pytest.mark.cpu

SOURCE = """
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator

class Mine(DefaultEvaluator):
    '''Takes what is mine.'''
    extra_keys = {"max_bias": 0.02, "rounds": int}

    @classmethod
    def can_evaluate(cls, definition):
        if definition.name == "odd":
            raise KeyError("no such thing")
        return definition.op_type == "mine"

EVALUATORS = [Mine]
"""
DEFINITIONS = [make_definition("first", op_type="mine"), make_definition("odd"), make_definition("other")]


@pytest.fixture
def mine(tmp_path):
    """The file of a plug-in."""
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    return file


def ask(mine, **others):
    plug_in = PlugIn("mine", "evaluator_modules: mine", folder=str(mine.parent))
    return lookup.look_up_evaluators(DEFINITIONS, [plug_in], **others)


def test_each_definition_gets_its_evaluator_or_the_reason_why_it_has_none(mine):
    found = ask(mine)
    chosen = {name: (choice.name, choice.why) for name, choice in found.choices.items()}
    assert chosen["first"] == ("Mine", "Takes what is mine.")
    assert chosen["other"][0] == "DefaultEvaluator"
    assert found.known.keys == {"max_bias", "rounds"}
    assert found.choices["first"].parameters["max_bias"].default == 0.02
    found.check([DEFINITIONS[0]], BenchmarkConfig(extra={"rounds": 2}))
    with pytest.raises(ConfigError, match="cannot be asked about definition odd: KeyError"):
        found.check(DEFINITIONS, BenchmarkConfig())
    with pytest.raises(ConfigError, match=r"BenchmarkConfig: extra\.rouds is no parameter .* did you mean 'rounds'"):
        found.check([DEFINITIONS[0]], BenchmarkConfig(extra={"rouds": 2}))
    assert "mine" not in sys.modules  # this process imports no plug-in


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("print('so it goes', flush=True); import os; os._exit(3)", "exit code 3; it said last:\nso it goes"),
        ("import time; time.sleep(600)", r"importing the evaluators \(mine\) takes more than 0.3 s"),
        ("1 / 0", "mine cannot be imported: ZeroDivisionError"),
        (SOURCE.replace("0.02", "object()"), "whose `extra_keys` cannot be used: <object"),
    ],
    ids=["ends", "hangs", "raises", "keys"],
)
def test_a_module_that_cannot_be_used_is_refused_with_the_reason(mine, source, reason):
    mine.write_text(source)
    with pytest.raises(ConfigError, match=reason):
        ask(mine, limit_s=0.3 if "sleep" in source else 60)


def test_the_resident_engine_asks_once_for_all_definitions(monkeypatch):
    asked = []

    def look_up(definitions, _plug_ins, **_others):
        asked.append([definition.name for definition in definitions])
        choice = lookup.EvaluatorChoice("Mine", "mine", "", "", "mine:Mine 0")
        return lookup.EvaluatorLookup({"first": choice, "other": choice}, {"odd": "it is odd"})

    monkeypatch.setattr(context, "look_up_evaluators", look_up)
    settings = BenchmarkConfig(devices=["cpu"], evaluator_modules=["mine"])
    shop = context.HarnessContext(TraceSet(), settings, None)
    for definition in (DEFINITIONS[0], DEFINITIONS[2], DEFINITIONS[0]):
        assert shop.fingerprint_evaluators([definition], DEFINITIONS)[definition.name] == "mine:Mine 0"
    with pytest.raises(ConfigError, match="it is odd"):
        shop.fingerprint_evaluators([DEFINITIONS[1]], DEFINITIONS)
    assert asked == [["first", "odd", "other"]]
