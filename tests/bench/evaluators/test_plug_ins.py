"""Foreign evaluators: their order, refusals, keys of `extra`, and results."""

import re
import sys
from importlib import metadata
from importlib.metadata import EntryPoint

import pytest
import torch

from flashinfer_bench.bench.config_sources import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators import registry
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Accepted, Baseline, Evaluator, Rejected
from flashinfer_bench.bench.evaluators.plug_ins import (
    KnownParameters,
    PlugIn,
    find_wrong_parameters,
    list_appended,
    list_plug_ins,
    read_parameters,
)
from flashinfer_bench.bench.evaluators.registry import choose_evaluator, find_evaluator, register
from flashinfer_bench.bench.runner.lookup import answer
from flashinfer_bench.data import Correctness, Environment, Evaluation, EvaluationStatus, Performance
from flashinfer_bench.errors import ConfigError, WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu
MINE = make_definition(op_type="mine")
HEAD = """
from flashinfer_bench.bench.evaluators import registry
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Evaluator
from flashinfer_bench.bench.evaluators.lowbit import LowBitEvaluator

class Mine(DefaultEvaluator):
    '''Takes {op_type}.'''
    @classmethod
    def can_evaluate(cls, definition):
        return definition.op_type == {op_type!r}
"""
LIST, APPEND = "EVALUATORS = [Mine]\n", "registry._EVALUATORS.append(Mine)\n"


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """Give each test a registry that it may spoil."""
    monkeypatch.setattr(registry, "_EVALUATORS", list(registry._EVALUATORS))
    monkeypatch.setattr(registry, "_ORIGINS", {})


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module of evaluators; gone from the interpreter when the test ends."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, *parts, op_type="mine"):
        (tmp_path / f"{name}.py").write_text(HEAD.format(op_type=op_type) + "".join(parts))
        monkeypatch.setitem(sys.modules, name, None)  # so that the import leaves no module behind
        del sys.modules[name]

    return write


def register_all(*references):
    register(PlugIn(reference, f"evaluator_modules: {reference}") for reference in references)


OFFERS = {"listed": LIST, "alone": "EVALUATORS = Mine\n", "named:Mine": "", "twice": LIST + APPEND}


@pytest.mark.parametrize("reference", OFFERS)
def test_a_module_offers_its_evaluators_in_any_of_these_ways(module, reference):
    name = reference.partition(":")[0]
    module(name, OFFERS[reference])
    register_all(reference, reference)
    chosen = choose_evaluator(MINE)
    assert (chosen.name, chosen.why, chosen.origin) == ("Mine", "Takes mine.", f"evaluator_modules: {reference}")
    assert chosen.fingerprint.startswith(f"{name}:Mine ")
    assert [evaluator.__name__ for evaluator in registry._EVALUATORS].count("Mine") == 1


@pytest.mark.parametrize(
    ("modules", "asked"),
    [
        ({"two": LIST, "one": LIST}, "two"),  # the configuration's order
        ({"last": APPEND}, "flashinfer_bench.bench.evaluators.lowbit"),
        ({"derived": "class Mine(LowBitEvaluator):\n    pass\n" + LIST}, "derived"),  # takes as its base
    ],
)
def test_the_order_of_evaluators(module, modules, asked):
    for name, source in modules.items():
        module(name, source, op_type="lowbit")
    register_all(*modules)
    found = find_evaluator(make_definition(op_type="lowbit"))
    assert (found.__module__, found.compares_elements(MINE)) == (
        asked,
        True,
    )  # an adapted evaluator keeps its declarations
    assert find_evaluator(make_definition(op_type="gemm")) is DefaultEvaluator


REFUSED = [
    (None, "broken cannot be imported: ModuleNotFoundError: No module named 'broken'; install its package, or put"),
    (LIST, "a module is named without .py: broken"),
    ("", "offers no evaluator; give the module a list EVALUATORS"),
    ("EVALUATORS = ['Mine']\n", "offers 'Mine', which is no subclass of Evaluator"),
    ("class Mine(DefaultEvaluator):\n    pass\n" + LIST, "has no can_evaluate of its own"),
    ("class Mine(Evaluator):\n    pass\n" + LIST, "which lacks build_baseline, can_evaluate, check_"),
    ("    def can_evaluate(self, definition):\n        return True\n" + LIST, "write @classmethod above"),
    ("    judge_trail = classmethod(lambda cls: None)\n" + LIST, "is judge_trial meant?"),
]


@pytest.mark.parametrize(("source", "reason"), REFUSED)
def test_unusable_plug_ins_are_refused_by_name_with_the_reason(module, source, reason):
    if source is not None:
        module("broken", source)
    reference = "broken.py" if ".py" in reason else "broken"
    refused = answer({"plug_ins": [{"reference": reference, "origin": "evaluator_modules"}], "definitions": []})
    assert refused["refused"].startswith(f"evaluator_modules: {reference} ")
    assert reason in refused["refused"]


def test_an_evaluator_that_fails_on_a_definition_is_refused(module):
    module("odd", "    can_evaluate = classmethod(lambda cls, definition: definition.no_such_thing)\n", LIST)
    register_all("odd")
    with pytest.raises(
        ConfigError, match=r"can_evaluate or why failed for definition double: AttributeError.*odd\.py, line 12"
    ):
        choose_evaluator(make_definition())


def test_an_edit_changes_the_fingerprint_and_so_does_a_revision_that_a_plug_in_sets(module, tmp_path):
    module("edited", LIST)
    register_all("edited")
    before = choose_evaluator(MINE).fingerprint
    (tmp_path / "edited.py").write_text("# another one\n")
    edited = choose_evaluator(MINE).fingerprint
    assert edited != before
    registry._EVALUATORS[0].revision = 7
    assert choose_evaluator(MINE).fingerprint.split() == ["edited:Mine", "7", edited.split()[-1]]


def test_a_plug_in_next_to_the_script_is_imported_before_installed_plug_ins(module, tmp_path, monkeypatch):
    module("beside", LIST)
    entries = [EntryPoint("b", "pack.b:Mine", "g"), EntryPoint("a", "pack.a", "g")]
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries)
    found, *installed = list_plug_ins(["beside"])
    origins = [(one.reference, one.origin) for one in installed]
    assert origins == [("pack.a", "entry point a"), ("pack.b:Mine", "entry point b")]
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    register([found])  # as another process does, whose search path is another one
    assert registry._EVALUATORS[0].__module__ == "beside"


def test_a_class_that_a_script_appended_keeps_its_place_if_another_process_can_import_it(module, tmp_path):
    class Local(DefaultEvaluator):
        """In a function: no other process can import it."""

    module("scripted")
    mine = __import__("scripted").Mine
    registry._EVALUATORS.append(mine)
    (found,) = list_plug_ins([])
    assert (found.reference, found.is_first, found.folder) == ("scripted:Mine", False, str(tmp_path))
    assert [plug_in.is_first for plug_in in list_appended([mine, DefaultEvaluator, mine])] == [True, False]
    for odd, reason in ((Local, "put it into a module"), (mine(), "append the class itself")):
        with pytest.raises(ConfigError, match=reason):
            list_appended([DefaultEvaluator, odd])


DECLARED = {"max_bias": 0.02, "rounds": 3, "exact": False, "mode": "fast", "steps": (1, 2), "limit": float, "any": None}
ALONE, SOME = (KnownParameters(frozenset(DECLARED), are_all=are_all) for are_all in (True, False))


@pytest.mark.parametrize(
    ("extra", "known", "words"),
    [
        ({"max_bias": True}, ALONE, "is True; Mine takes a number"),
        ({"rounds": 2.5}, ALONE, "a whole number"),
        ({"steps": 1}, ALONE, "a list"),
        ({"limit": None}, ALONE, "a number"),
        ({"max_bias": 1, "steps": [], "limit": 0.5, "any": {"a": 1}}, ALONE, None),
        ({"summed_tolerance": True, "theirs": 1}, KnownParameters(ALONE.keys | {"theirs"}), None),
        ({"zzz": 1}, ALONE, "nor of another evaluator; Mine has max_bias, rounds, exact, mode, steps, limit, any"),
        ({"zzz": 1}, SOME, None),
        ({"max_bais": 1}, SOME, "did you mean 'max_bias'?"),
    ],
)
def test_a_value_of_another_type_or_an_unknown_key_is_refused_with_its_place(extra, known, words):
    config = ResolvedEvalConfig(extra=extra, origins={f"extra.{key}": "my.yaml: op_type_config.mine" for key in extra})
    reported = "; ".join(find_wrong_parameters(config, "Mine", read_parameters(DECLARED), known))
    assert reported.startswith(f"my.yaml: op_type_config.mine: extra.{next(iter(extra))} " if words else "")
    assert reported.endswith(words) if words else reported == ""


@pytest.mark.parametrize("declared", [{1: 2}, {"a": [object()]}])
def test_a_declaration_that_maps_to_no_defaults_or_types_is_refused(declared):
    with pytest.raises(ValueError, match=r"is no mapping|is neither a default"):
        read_parameters(declared)


APART = Correctness(max_absolute_error=2.0)
WRONG = Evaluation(
    status="INCORRECT_NUMERICAL",
    log="two apart",
    environment=Environment(hardware="cpu"),
    timestamp="2026-01-01T00:00:00",
    correctness=APART,
)


class Public(Evaluator):
    """Takes mine, with methods as the public package documents them."""

    returned = None

    @staticmethod
    def can_evaluate(definition):
        return definition.op_type == "mine"

    @classmethod
    def build_baseline(cls, definition, workload, cfg, device):
        x = torch.ones(workload.axes["n"], device=device)
        return Baseline([[x]], [[2 * x]], None, None)

    @classmethod
    def check_correctness(cls, definition, sol_runnable, inputs, ref_outputs, cfg, log_path, device):
        assert (log_path, device) == ("/dev/null", "cpu")
        assert torch.equal(sol_runnable(*inputs[0])[0], ref_outputs[0][0])
        return cls.returned

    @classmethod
    def eval_performance(cls, definition, sol_runnable, inputs, ref_mean_latency_ms, cfg, **kwargs):
        assert "context" in kwargs
        return Performance(latency_ms=1.0)


@pytest.mark.parametrize(
    ("returned", "verdict"),
    [
        *((one, Accepted(Correctness())) for one in (Accepted(Correctness()), Correctness(), (Correctness(), None))),
        ((APART, WRONG), Rejected(EvaluationStatus.INCORRECT_NUMERICAL, "two apart", APART)),
        (True, "type bool"),
        (Correctness(max_abs_error=1.0), "unknown 'max_abs_error'; did you mean 'max_absolute_error'?"),
    ],
)
@pytest.mark.parametrize("module", [__name__, "flashinfer_bench.bench.evaluators.mine"])  # also put into a checkout
def test_methods_as_the_public_package_documents_them_judge_or_are_a_fault_that_names_them(
    monkeypatch, returned, verdict, module
):
    monkeypatch.setattr(Public, "returned", returned)
    monkeypatch.setattr(Public, "__module__", module)
    monkeypatch.setattr(registry, "_EVALUATORS", [Public])
    job = Judging(MINE, {"n": 8})
    assert (job.evaluator.__name__, job.evaluator.__module__) == ("Public", module)
    assert job.evaluator.eval_performance(MINE, None, [], None, None, context=job.context).latency_ms == 1.0
    if not isinstance(verdict, str):
        assert job.check(lambda x: x * 2) == verdict
    else:
        with pytest.raises(WorkloadFault, match=rf"Public\.check_correctness returned .*{re.escape(verdict)}"):
            job.check(lambda x: x * 2)
