"""A definition's reference packed as a solution: honest in either calling style, or one with a single fault.

A fault is put into the last output: an engine that pairs outputs and expectations carelessly loses that one.
"""

from __future__ import annotations

import keyword
from typing import Final, Literal

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.data.reference import ENTRY_NAME, read_module
from flashinfer_bench.data.solution import Solution
from tests.kit.make import make_solution

Style = Literal["value", "dps"]

SPOILERS: Final = {
    "wrong_element": "flat[at] = off(flat[at])",
    "wrong_region": "flat[: at + 1] = off(flat[: at + 1])",
    "absurd_element": "flat[at] = 5 * flat.float().abs().max() + 1",
    "unwritten_stretch": "flat[:64] = 0",
    "nan": "flat[at] = float('nan')",
    "wrong_dtype": "last = last.to(torch.float64 if last.dtype != torch.float64 else torch.float32)",
    "wrong_shape": "last = last.unsqueeze(0)",
    "missing_output": "return outputs[:-1]",
}
"""Fault to what a solution does with its last output: `flat` is that output as one row, `at` is its middle."""
NUMERICAL: Final = ("wrong_element", "wrong_region", "absurd_element", "unwritten_stretch", "nan")
"""Faults that leave count, shape and dtype as they should be."""
EXPECTED_STATUS: Final = {
    **dict.fromkeys(NUMERICAL, "INCORRECT_NUMERICAL"),
    "wrong_dtype": "INCORRECT_DTYPE",
    "wrong_shape": "INCORRECT_SHAPE",
    "missing_output": "INCORRECT_SHAPE",
}
"""Fault to the status of a value-returning solution; one that leaves an output unwritten is INCORRECT_NUMERICAL."""

CALL: Final = """\
import torch
from reference import run as reference

INPUTS = {inputs}
OUTPUTS = {outputs}


def compute(*inputs):
    returned = reference(**dict(zip(INPUTS, inputs))) if {by_keyword} else reference(*inputs)
    if isinstance(returned, dict):
        return [returned[name] for name in OUTPUTS]
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]


def off(values):
    return values + 1 + values.abs() if values.is_floating_point() else -1 - values


def spoil(outputs):
    last = outputs[-1].contiguous().clone()
    flat = last.view(-1)
    at = flat.numel() // 2
    {spoiler}
    return [*outputs[:-1], last]

"""
RETURN: Final = """
def run({inputs}):
    return tuple({spoil}(compute({inputs})))
"""
FILL: Final = """
def run({inputs}, {outputs}):
    for target, value in zip(({outputs},), {spoil}(compute({inputs}))):
        target.copy_(value)
"""


def pack_reference(definition: Definition, *, style: Style = "value", fault: str | None = None) -> Solution:
    """Pack the reference of a definition.

    An honest value-returning solution is the reference as it stands, wherever that takes the inputs in their order.

    Args:
        definition: one whose reference can be run.
        style: how the solution is called; one that is destination-passing can have no fault of dtype or shape.
        fault: a key of `SPOILERS`.
    """
    name = "__".join(part for part in (definition.name, style, fault) if part)
    sources = {"main.py": definition.reference}
    if fault or style == "dps" or not _takes_inputs_in_order(definition):
        sources = {"reference.py": definition.reference, "main.py": _wrapper(definition, style, fault)}
    return make_solution(
        name,
        definition=definition.name,
        author="packed",
        sources=sources,
        destination_passing_style=style == "dps",
    )


def list_faults(definition: Definition, style: Style) -> list[str]:
    """Return the faults that a solution in this style can have; integers have no nan."""
    last = list(definition.outputs.values())[-1]
    faults = [*NUMERICAL, "missing_output"] if style == "dps" else list(SPOILERS)
    return [fault for fault in faults if fault != "nan" or DTYPES[last.dtype].kind == "float"]


def expected_status(style: Style, fault: str | None) -> str:
    """Return the status that a solution gets from an evaluator that holds every element against the reference."""
    if fault is None:
        return "PASSED"
    return "INCORRECT_NUMERICAL" if style == "dps" else EXPECTED_STATUS[fault]


def _parameters_of(definition: Definition) -> list[str]:
    signature = read_module(definition.reference).signatures.get(ENTRY_NAME)
    return list(signature.parameters) if signature is not None else []


def _takes_inputs_in_order(definition: Definition) -> bool:
    parameters = _parameters_of(definition)
    return parameters[: len(definition.inputs)] == list(definition.inputs)


def _wrapper(definition: Definition, style: Style, fault: str | None) -> str:
    names = [*definition.inputs, *definition.outputs]
    odd = [name for name in names if not name.isidentifier() or keyword.iskeyword(name)]
    if odd:
        raise ValueError(f"{definition.name}: {', '.join(odd)} cannot be the name of a parameter")
    by_keyword = set(definition.inputs) <= set(_parameters_of(definition))
    call = CALL.format(
        inputs=list(definition.inputs),
        outputs=list(definition.outputs),
        by_keyword=by_keyword,
        spoiler=SPOILERS[fault] if fault else "pass",
    )
    run = (FILL if style == "dps" else RETURN).format(
        inputs=", ".join(definition.inputs),
        outputs=", ".join(definition.outputs),
        spoil="spoil" if fault else "",
    )
    return call + run
