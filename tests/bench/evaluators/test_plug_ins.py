"""Evaluators from outside: which there are, in which order they are asked, and what is refused."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluators import registry
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.plug_ins import PlugIn, list_appended, list_plug_ins
from flashinfer_bench.bench.evaluators.registry import choose_evaluator, find_evaluator, register
from flashinfer_bench.bench.runner.lookup import answer
from flashinfer_bench.errors import ConfigError
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu

HEAD = "from flashinfer_bench.bench.evaluators.default import DefaultEvaluator\n"
TAKES = """
class {name}(DefaultEvaluator):
    '''Takes {op_type}.'''
    @classmethod
    def can_evaluate(cls, definition):
        return definition.op_type == {op_type!r}
"""
APPEND = "from flashinfer_bench.bench.evaluators import registry\nregistry._EVALUATORS.append({name})\n"


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """Give each test a registry that it may spoil."""
    monkeypatch.setattr(registry, "_EVALUATORS", list(registry._EVALUATORS))
    monkeypatch.setattr(registry, "_ORIGINS", {})


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module of evaluators; gone from the interpreter when the test ends."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, *parts):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(HEAD + "".join(parts))
        monkeypatch.setitem(sys.modules, name, None)  # so that what the import leaves is undone
        del sys.modules[name]
        return name

    return write


def takes(name, op_type="mine"):
    return TAKES.format(name=name, op_type=op_type)


def register_all(*references):
    register(PlugIn(reference, f"evaluator_modules: {reference}") for reference in references)


@pytest.mark.parametrize(
    ("reference", "offer"),
    [
        ("listed", "EVALUATORS = [Mine]\n"),
        ("alone", "EVALUATORS = Mine\n"),
        ("named:Mine", ""),
        ("appended", APPEND.format(name="Mine")),
        ("twice", "EVALUATORS = [Mine, Mine]\n" + APPEND.format(name="Mine")),
    ],
)
def test_a_module_offers_its_evaluators_in_any_of_these_ways(module, reference, offer):
    name = reference.partition(":")[0]
    module(name, takes("Mine"), offer)
    register_all(reference, reference)
    chosen = choose_evaluator(make_definition(op_type="mine"))
    assert (chosen.name, chosen.why, chosen.origin) == ("Mine", "Takes mine.", f"evaluator_modules: {reference}")
    assert chosen.fingerprint.startswith(f"{name}:Mine ")
    assert [evaluator.__name__ for evaluator in registry._EVALUATORS].count("Mine") == 1


LISTED = takes("Mine", "lowbit") + "EVALUATORS = [Mine]\n"
BASE = "from flashinfer_bench.bench.evaluators.lowbit import LowBitEvaluator\nclass Mine(LowBitEvaluator):\n    pass\n"


@pytest.mark.parametrize(
    ("modules", "asked"),
    [
        ({"two": LISTED, "one": LISTED}, "two"),
        ({"last": takes("Mine", "lowbit") + APPEND.format(name="Mine")}, "flashinfer_bench.bench.evaluators.lowbit"),
        ({"derived": BASE + "EVALUATORS = [Mine]\n"}, "derived"),
    ],
    ids=["the configuration's order", "appended ones last", "a derived one takes as its base"],
)
def test_who_is_asked_first(module, modules, asked):
    for name, source in modules.items():
        module(name, source)
    register_all(*modules)
    assert find_evaluator(make_definition(op_type="lowbit")).__module__ == asked
    assert find_evaluator(make_definition(op_type="gemm")) is DefaultEvaluator


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (None, "broken cannot be imported: ModuleNotFoundError: No module named 'broken'; install its package, or put"),
        ("import nothing_of_this_name\n", "No module named 'nothing_of_this_name' ("),
        ("1 / 0\n", "ZeroDivisionError: division by zero ("),
        ("raise SystemExit(3)\n", "SystemExit: 3 ("),
        ("def f(:\n", "SyntaxError: invalid syntax"),
        ("", "offers no evaluator; give the module a list EVALUATORS"),
        ("EVALUATORS = []\n", "offers no evaluator"),
        ("EVALUATORS = ['Mine']\n", "offers 'Mine', which is no subclass of Evaluator"),
        ("class Mine(DefaultEvaluator):\n    pass\nEVALUATORS = [Mine]\n", "has no can_evaluate of its own"),
        (
            "from flashinfer_bench.bench.evaluators.evaluator import Evaluator\n"
            "class Mine(Evaluator):\n    pass\nEVALUATORS = [Mine]\n",
            "which lacks build_baseline, can_evaluate, check_correctness, eval_performance",
        ),
        (
            "class Mine(DefaultEvaluator):\n    def can_evaluate(self, definition):\n        return True\n"
            "EVALUATORS = [Mine]\n",
            "whose can_evaluate cannot be called on the class: write @classmethod above",
        ),
        (
            "class Mine(DefaultEvaluator):\n    can_evaluate = classmethod(lambda cls, definition: True)\n"
            "    judge_trail = classmethod(lambda cls, definition, trial, cfg: None)\nEVALUATORS = [Mine]\n",
            "whose judge_trail overrides nothing: is judge_trial meant?",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(module, source, reason):
    if source is not None:
        module("broken", source)
    refused = answer({"plug_ins": [{"reference": "broken", "origin": "evaluator_modules"}], "definitions": []})
    assert refused["refused"].startswith("evaluator_modules: broken ")
    assert reason in refused["refused"]


def test_a_helper_beside_the_method_of_nearly_its_name_is_no_slip(module):
    helper = "    {} = classmethod(lambda cls, definition, trial, cfg: None)\n"
    body = takes("Mine") + "".join(map(helper.format, ("judge_trial", "judge_trail", "judge_one", "tolerances")))
    module("helped", body, "EVALUATORS = [Mine]\n")
    register_all("helped")
    assert find_evaluator(make_definition(op_type="mine")).__module__ == "helped"


def test_an_evaluator_that_fails_on_a_definition_is_refused(module):
    module("odd", takes("Mine").replace("return", "return definition.no_such_thing or"), "EVALUATORS = [Mine]\n")
    register_all("odd")
    with pytest.raises(ConfigError, match=r"asked about definition double: AttributeError.*odd\.py, line 7"):
        choose_evaluator(make_definition())


def test_an_edit_changes_the_fingerprint_and_so_does_a_revision_that_a_plug_in_sets(module, tmp_path):
    module("edited", takes("Mine"), "EVALUATORS = [Mine]\n")
    register_all("edited")
    before = choose_evaluator(make_definition(op_type="mine")).fingerprint
    (tmp_path / "edited.py").write_text("# another one\n")
    edited = choose_evaluator(make_definition(op_type="mine")).fingerprint
    assert edited != before
    registry._EVALUATORS[0].revision = 7
    revised = choose_evaluator(make_definition(op_type="mine")).fingerprint
    assert revised.split() == ["edited:Mine", "7", edited.split()[-1]]


def test_installed_packages_come_after_the_configuration_by_name():
    entries = [EntryPoint("b", "pack.b:Mine", "g"), EntryPoint("a", "pack.a", "g")]
    found = list_plug_ins(["mine"], find_entry_points=lambda group: entries)
    assert [plug_in.reference for plug_in in found] == ["mine", "pack.a", "pack.b:Mine"]
    assert found[1].origin == "entry point a"


@pytest.mark.parametrize("name", ["beside", "pack.inner"])
def test_a_plug_in_is_imported_from_the_folder_where_the_script_finds_it(module, tmp_path, monkeypatch, name):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/__init__.py").touch()
    module("beside", takes("Mine"), "EVALUATORS = [Mine]\n")
    (tmp_path / "pack/inner.py").write_text((tmp_path / "beside.py").read_text())
    (found,) = list_plug_ins([name], find_entry_points=lambda group: [])
    assert found.folder == str(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    register([found])  # as another process does, whose search path is another one
    assert registry._EVALUATORS[0].__module__ == name
    assert sys.path[-1] == str(tmp_path)
    assert list_plug_ins(["not_there_at_all"], find_entry_points=lambda group: [])[0].folder is None


def test_a_class_that_a_script_appended_keeps_its_place_if_another_process_can_import_it(module, tmp_path):
    class Local(DefaultEvaluator):
        """In a function: no other process can import it."""

    module("scripted", takes("Mine"))
    mine = __import__("scripted").Mine
    registry._EVALUATORS.append(mine)
    (found,) = list_plug_ins([], find_entry_points=lambda group: [])
    assert (found.reference, found.is_first, found.folder) == ("scripted:Mine", False, str(tmp_path))
    assert [plug_in.is_first for plug_in in list_appended([mine, DefaultEvaluator, mine])] == [True, False]
    for odd, reason in ((Local, "put it into a module"), (mine(), "append the class itself")):
        with pytest.raises(ConfigError, match=reason):
            list_appended([DefaultEvaluator, odd])


@pytest.mark.parametrize("reference", ["./mine.py", "mine.py/", "", "my-module", "a..b", "a:", "a:b c"])
def test_what_is_no_module_is_a_wrong_value_of_the_configuration(reference):
    with pytest.raises(ValueError, match="is no module; write"):
        BenchmarkConfig(evaluator_modules=[reference])
