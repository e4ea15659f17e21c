"""Taking a function out of a module of code."""

from __future__ import annotations

import ast
import sys
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.routines.case.lift import CODE, lift
from flashinfer_bench.routines.case.materials import make_material
from flashinfer_bench.routines.table import ROUTINES
from tests.routines.judged import make_case
from tests.routines.small import SMALL, VARIANTS


def test_what_a_function_uses_comes_along_and_nothing_else():
    source = lift("norm_torch", "rmsnorm", {"EPS": 0.5})
    names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert names == ["normalise", "run"]
    assert "EPS = 0.5" in source
    assert "SWIZZLED" not in source


@pytest.mark.parametrize(
    ("function", "constants", "parameters", "words"),
    [
        ("nothing", {}, None, "has no nothing"),
        ("rmsnorm", {"ESP": 1}, None, "has no ESP"),
        ("rmsnorm", {}, ["x"], "takes x, weight; it should take x"),
    ],
)
def test_what_does_not_fit_is_refused(function, constants, parameters, words):
    with pytest.raises(ValueError, match=words):
        lift("norm_torch", function, constants, parameters=parameters)


@pytest.mark.parametrize(("routine", "flags"), [*SMALL.items(), *VARIANTS], ids=lambda text: str(text)[:60])
def test_every_backend_of_every_routine_is_a_solution_that_compiles(routine, flags):
    case = make_case(routine, flags)
    material = make_material(routine, case, ["torch", *case.solutions])
    for backend, solution in material.solutions.items():
        source = solution.sources[0].content
        compile(source, backend, "exec")
        assert ("import flashinfer" in source) == (backend != "torch")


@pytest.mark.parametrize(("routine", "flags"), [*SMALL.items(), *VARIANTS], ids=lambda text: str(text)[:60])
def test_what_a_backend_prepares_stands_in_its_setup_and_nothing_is_kept_by_address(routine, flags):
    case = make_case(routine, flags)
    for solution in make_material(routine, case, case.solutions).solutions.values():
        source = solution.sources[0].content
        functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        run, setup = functions["run"], functions.get("setup")
        assert "data_ptr" not in source
        assert ".plan(" not in ast.unparse(run)
        assert (setup is not None) == bool(run.args.kwonlyargs)
        if setup is not None:
            assert ast.unparse(setup.args.args) == ast.unparse(run.args.args)


def test_attention_is_planned_in_setup_and_run_makes_the_call_alone(monkeypatch):
    done = []

    class Wrapper:
        def __init__(self, *given, **options):
            done.append("wrapper")

        def plan(self, *given, **options):
            done.append("plan")

        def run(self, *given, **options):
            done.append("run")

    library = SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=Wrapper)
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    module = {}
    exec(lift("attention_flashinfer", "decode", {"WORKSPACE_BYTES": 1}), module)
    q, cache, out = torch.zeros(2, 4, 8), torch.zeros(4, 2, 16, 1, 8), torch.zeros(2, 4, 8)
    given = (q, cache, torch.zeros(2, 2, dtype=torch.int32), torch.tensor([3, 17]), out)
    for _ in range(2):
        module["run"](*given, **module["setup"](*given))
    assert done == ["wrapper", "plan", "run", "plan", "run"]


def test_the_support_matrix_and_the_solutions_name_the_same_backends():
    for name, routine in ROUTINES.items():
        case = make_case(name)
        assert {*case.solutions, *case.refusals} >= set(routine.support), name
        assert set(routine.default_backends) <= set(routine.backends)


def test_no_code_is_left_that_nothing_lifts():
    used = {(source.file, source.function) for name in ROUTINES for source in _sources(make_case(name))}
    used |= {(source.file, source.function) for name, flags in VARIANTS for source in _sources(make_case(name, flags))}
    for file in sorted(CODE.glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        comes_along = {name for name in functions if (file.stem, name.removesuffix("_setup")) in used}
        idle = [name for name in functions if name not in comes_along and name not in called]
        assert idle == [], f"{file.name}: {idle}"


def _sources(case):
    return [case.reference, *case.solutions.values()]
