"""The solutions that are made of functions of the modules of code."""

from __future__ import annotations

import ast
import builtins

import pytest

from flashinfer_bench.routines.case.materials import make_material
from flashinfer_bench.routines.table import find_routine
from tests.routines.judged import make_case
from tests.routines.small import SMALL, VARIANTS


@pytest.mark.parametrize(("routine", "flags"), [*SMALL.items(), *VARIANTS], ids=lambda text: str(text)[:60])
def test_every_backend_is_a_solution_that_has_all_that_it_names_and_prepares_in_setup(routine, flags):
    entry, case = find_routine(routine), make_case(routine, flags)
    backends = ["torch", *(entry.support if not entry.needs_ranks else ())]
    for backend, solution in make_material(entry, case, backends).solutions.items():
        nodes = [*ast.walk(ast.parse(source := solution.sources[0].content))]
        functions = {node.name: node.args for node in nodes if isinstance(node, ast.FunctionDef)}
        assert ("import flashinfer" in source, "flashinfer_bench" in source) == (backend != "torch", False)
        assert ("setup" in functions) == bool(functions["run"].kwonlyargs)
        is_dps = {one.arg for one in functions["run"].args} > {*case.inputs}
        assert solution.spec.destination_passing_style == is_dps
        names = [node for node in nodes if isinstance(node, ast.Name)]
        given = {node.id for node in names if isinstance(node.ctx, ast.Store)} | {*dir(builtins), "torch", "flashinfer"}
        given |= {getattr(node, "arg", getattr(node, "name", None)) for node in nodes}
        assert {node.id for node in names} <= given
