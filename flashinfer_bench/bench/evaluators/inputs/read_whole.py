"""Finds inputs that a reference provably reads whole: each element of such an input changes the reference's result.

The reference runs once on traced tensors (`stand_ins.py`), and its operations are followed. Operations that are not
listed here prove nothing, such as indexing, masks, branches on values, and writes in place. Functions whose result may
be zero or saturate prove nothing either: a solution that finds a factor of zero need not read the other factors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.inputs.generate import bind_axes, find_varied_inputs
from flashinfer_bench.bench.evaluators.inputs.integers import find_plain_values
from flashinfer_bench.bench.evaluators.inputs.stand_ins import DONE, Traced, Watch, name_of, run
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.data import Definition, ScalarInput, Workload
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.errors import WorkloadFault

LAYOUT: Final = frozenset(
    {"view", "_unsafe_view", "t", "transpose", "permute", "unsqueeze", "squeeze", "expand"}
    | {"alias", "detach", "slice", "clone", "_to_copy"}
)
"""Operations that keep all elements, if the result has at least as many elements as the input."""
SUMS: Final = frozenset(("add", "sub", "div"))
"""Operations that add terms. Such an operation proves nothing if several terms depend on the same input, since the
terms may cancel out."""
PRODUCTS: Final = frozenset(("mul", "mm", "bmm", "mv", "dot", "sum", "mean", "neg", "sqrt", "rsqrt"))


class _Whole(NamedTuple):
    """The note of a tensor: each element of `inputs` changes the tensor."""

    inputs: frozenset[str]
    is_computed: bool = False
    """Whether the tensor is computed. A tensor that is not computed may be the input's own memory, which proves no
    read."""


class _Follower(Watch):  # type: ignore[no-untyped-call] # torch has no types for it
    """Follows the operations of torch on inputs, to prove that each element is read."""

    def conclude(self, func: Any, given: Mapping[str, Any], result: Any) -> None:
        """Derive the note of an operation's result."""
        tensors = [value for value in given.values() if isinstance(value, Traced)]
        sides: list[frozenset[str]] = [value.note.inputs for value in tensors if value.note is not None]
        if not isinstance(result, Traced) or len(sides) < len(tensors) or not sides or not result.is_floating_point():
            return
        name, sizes = name_of(func), [value.numel() for value in (*tensors, result)]
        numbers = [value for value in given.values() if not isinstance(value, torch.Tensor)]
        are_factors = all(isinstance(one, bool | int | float) and one and math.isfinite(one) for one in numbers)
        inputs = frozenset[str]().union(*sides)
        is_power = func._overloadname == "Tensor_Scalar" and given.get("exponent") in (2, 0.5, -0.5)
        if 0 in sizes:
            return
        if name in LAYOUT:
            result.note = tensors[0].note if sizes[-1] >= sizes[0] else None
        elif name in SUMS:
            is_proven = are_factors and "alpha" not in given and len(inputs) == sum(map(len, sides))
            result.note = _Whole(inputs, is_computed=True) if is_proven else None
        elif is_power or name in ("sum", "mean") or (name in PRODUCTS and are_factors):
            result.note = _Whole(inputs, is_computed=True)


def find_read_whole(definition: Definition, workload: Workload) -> dict[str, float]:
    """Return the size in bytes of each input that the reference provably reads whole, by name; empty if nothing is
    proved.

    Only inputs with normal random values count, since such inputs cannot be masks. The reference is compiled again, so
    that a reference that caches tensors does not cache tensors without values.
    """
    with suppress(WorkloadFault):
        axes, shapes = bind_axes(definition, workload)
        given = dict[str, Any]()
        normal = dict[str, float]()
        for (name, spec), varied in zip(
            definition.inputs.items(), find_varied_inputs(definition, workload).values(), strict=True
        ):
            source, shape = workload.inputs.get(name), shapes[name]
            if shape is None or (source is None and spec.optional):
                given[name] = source.value if isinstance(source, ScalarInput) else None
            elif varied.deviation is not None:
                normal[name] = math.prod(shape) * DTYPES[spec.dtype].bits / 8
        follower = _Follower(torch.device("cpu"), truth=True)
        values = find_plain_values(definition, axes, given)
        for name in normal:
            values[name] = Traced.make(values[name], {name}, follower)
            values[name].note = _Whole(frozenset([name]))
        returned = run(Reference.compile(definition), values, follower)
        if follower.end != DONE or not follower.is_open:
            return {}
        outputs = [*returned.values()] if isinstance(returned, Mapping) else returned
        notes = [getattr(one, "note", None) for one in (outputs if isinstance(outputs, list | tuple) else [outputs])]
        read = {name for note in notes if note is not None and note.is_computed for name in note.inputs}
        return {name: normal[name] for name in sorted(read)}
    return {}
