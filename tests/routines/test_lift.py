"""The solutions that are made of functions of the modules of code."""

from __future__ import annotations

import ast

import pytest

from flashinfer_bench.routines.case.lift import CODE
from flashinfer_bench.routines.case.materials import make_material
from flashinfer_bench.routines.table import find_routine
from tests.routines.judged import make_case
from tests.routines.small import SMALL, VARIANTS


@pytest.mark.parametrize(("routine", "flags"), [*SMALL.items(), *VARIANTS], ids=lambda text: str(text)[:60])
def test_every_backend_is_a_solution_that_compiles_and_prepares_in_setup(routine, flags):
    entry, case = find_routine(routine), make_case(routine, flags)
    backends = ["torch", *(entry.support if not entry.needs_ranks else ())]
    for backend, solution in make_material(entry, case, backends).solutions.items():
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
        taken = {argument.arg for argument in run.args.args}
        assert solution.spec.destination_passing_style == bool(taken & {*case.outputs})
    text = "".join(path.read_text() for path in [*CODE.glob(f"{entry.family}_*.py"), CODE / "formats.py"])
    of_flags = {flag.name.upper() for flag in entry.flags}
    assert [name for name in case.constants if f"\n{name} = " not in text and name not in of_flags] == []
