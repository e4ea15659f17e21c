"""The process that imports evaluators from outside and answers one question."""

import pytest

from flashinfer_bench.bench.evaluators.plug_ins import PlugIn
from flashinfer_bench.bench.runner import lookup
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


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("print('so it goes', flush=True); import os; os._exit(3)", "exit code 3; it said last:\nso it goes"),
        ("import time; time.sleep(600)", r"importing the evaluators \(mine\) takes more than 0.3 s"),
    ],
    ids=["ends", "hangs"],
)
def test_a_module_that_cannot_be_used_is_refused_with_the_reason(mine, source, reason):
    mine.write_text(source)
    with pytest.raises(ConfigError, match=reason):
        ask(mine, limit_s=0.3 if "sleep" in source else 60)
