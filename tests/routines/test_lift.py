"""Taking a function out of a module of code."""

from __future__ import annotations

import ast
import sys
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.routines.case.lift import CODE, lift
from flashinfer_bench.routines.case.materials import make_material
from flashinfer_bench.routines.table import ROUTINES, find_routine
from tests.routines.judged import make_case
from tests.routines.small import SMALL, VARIANTS


def test_what_a_function_uses_comes_along_and_nothing_else():
    source, is_dps = lift("norm_torch", "rmsnorm", {"EPS": 0.5, "OF_OTHERS": 1}, ["weight", "x", "more"], ["out"])
    assert not is_dps
    names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert names == ["normalise", "run"]
    assert "EPS = 0.5" in source
    assert "def run(weight, x, more):" in source
    assert "SWIZZLED" not in source
    assert "def to_tiles" in lift("norm_torch", "rmsnorm_fp4quant", {}, ["x", "weight", "global_scale"])[0]


@pytest.mark.parametrize(
    ("function", "said"), [("nothing", "has no nothing"), ("rmsnorm", "takes x, weight; there are x")]
)
def test_what_does_not_fit_is_refused(function, said):
    with pytest.raises(ValueError, match=said):
        lift("norm_torch", function, {}, ["x"])


CASES = pytest.mark.parametrize(("routine", "flags"), [*SMALL.items(), *VARIANTS], ids=lambda text: str(text)[:60])


def solutions_of(routine, flags=None):
    """Return backend and solution of a case, for all backends that have one."""
    entry = find_routine(routine)
    backends = ["torch", *(entry.support if not entry.needs_ranks else ())]
    return make_material(entry, make_case(routine, flags), backends).solutions


@CASES
def test_every_backend_is_a_solution_that_compiles_and_prepares_in_setup(routine, flags):
    for backend, solution in solutions_of(routine, flags).items():
        source = solution.sources[0].content
        functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        run, setup = functions["run"], functions.get("setup")
        assert ("import flashinfer" in source) == (backend != "torch")
        assert "flashinfer_bench" not in source
        assert "data_ptr" not in source
        assert ".plan(" not in ast.unparse(run)
        assert (setup is not None) == bool(run.args.kwonlyargs)
        if setup is not None:
            assert ast.unparse(setup.args.args) == ast.unparse(run.args.args)
        outputs = {*make_case(routine, flags).outputs}
        assert solution.spec.destination_passing_style == bool(outputs & {one.arg for one in run.args.args})


@CASES
def test_every_constant_of_a_case_is_one_of_its_modules(routine, flags):
    family = find_routine(routine).family
    text = "".join(path.read_text() for path in [*CODE.glob(f"{family}_*.py"), CODE / "formats.py"])
    assert [name for name in make_case(routine, flags).constants if f"\n{name} = " not in text] == []


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
    names = ["q", "kv_cache", "block_tables", "kv_lens", "out"]
    exec(lift("attention_flashinfer", "decode", {"WORKSPACE_BYTES": 1}, names)[0], module)
    q, cache, out = torch.zeros(2, 4, 8), torch.zeros(4, 2, 16, 1, 8), torch.zeros(2, 4, 8)
    given = (q, cache, torch.zeros(2, 2, dtype=torch.int32), torch.tensor([3, 17]), out)
    for _ in range(2):
        module["run"](*given, **module["setup"](*given))
    assert done == ["wrapper", "plan", "run", "plan", "run"]


def test_no_code_is_left_that_nothing_lifts():
    texts = [one.sources[0].content for name in ROUTINES for one in solutions_of(name).values()]
    texts += [one.sources[0].content for name, flags in VARIANTS for one in solutions_of(name, flags).values()]
    lifted = {
        ast.get_docstring(node) for text in texts for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)
    }
    for file in sorted(CODE.glob("*.py")):
        functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
        assert [node.name for node in functions if ast.get_docstring(node) not in lifted] == [], file.name
