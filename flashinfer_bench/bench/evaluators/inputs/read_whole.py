"""Inputs that a reference provably reads whole: each of their elements changes what it returns.

The reference is run once on stand-ins, and its operations are followed. Whatever is not listed here proves nothing:
indices, slices, masks, branches on values, loops, writes in place. Nor do functions that may vanish or saturate: what
they are multiplied with may be left unread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.inputs.integers import find_plain_values
from flashinfer_bench.bench.evaluators.inputs.make import bind_axes
from flashinfer_bench.bench.evaluators.inputs.random_values import Blank
from flashinfer_bench.bench.evaluators.inputs.rules import find_freedom
from flashinfer_bench.bench.evaluators.inputs.stand_ins import DONE, Operation, Traced, Watch, run
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.data import Definition, RandomInput, ScalarInput, Workload
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.errors import WorkloadFault

LAYOUT: Final = frozenset(
    {"view", "_unsafe_view", "t", "transpose", "permute", "unsqueeze", "squeeze", "expand"}
    | {"alias", "detach", "slice", "clone", "_to_copy"}
)
"""They keep all elements, if there are no fewer afterwards."""
SUMS: Final = frozenset(("add", "sub", "div"))
"""What both sides depend on may cancel out."""
PRODUCTS: Final = frozenset(("mul", "mm", "bmm", "mv", "dot", "sum", "mean", "neg", "sqrt", "rsqrt"))


class _Whole(NamedTuple):
    """What is known of a tensor: each element of these inputs changes it."""

    inputs: frozenset[str]
    is_computed: bool = False
    """It is no copy of an input: who returns a copy may return the input's own memory, and read nothing."""


class _Follower(Watch):  # type: ignore[no-untyped-call] # torch has no types for it
    """Follows what the operations of torch do with inputs, of which each element is to be read."""

    def __init__(self, inputs: Iterable[str]) -> None:
        super().__init__(torch.device("cpu"), truth=True)
        self._whole = {name: _Whole(frozenset([name])) for name in inputs}

    def find(self, value: Any) -> _Whole | None:
        """Return what is known of a tensor; None if nothing is."""
        if not isinstance(value, Traced):
            return None
        return value.note or (self._whole.get(value.name) if value.name else None)

    def conclude(self, operation: Operation, given: Mapping[str, Any], result: Any) -> None:
        """Note what follows for an operation's result."""
        tensors = [value for value in given.values() if isinstance(value, Traced)]
        sides = [side for value in tensors if (side := self.find(value)) is not None]
        if not isinstance(result, Traced) or len(sides) < len(tensors) or not sides or not result.is_floating_point():
            return
        name, sizes = operation.name, [value.numel() for value in (*tensors, result)]
        if 0 in sizes:
            return
        numbers = [value for value in given.values() if not isinstance(value, torch.Tensor)]
        are_factors = all(isinstance(one, bool | int | float) and one and math.isfinite(one) for one in numbers)
        inputs = frozenset[str]().union(*(side.inputs for side in sides))
        is_power = name == "pow" and operation.overload == "Tensor_Scalar" and given["exponent"] in (2, 0.5, -0.5)
        if name in LAYOUT:
            result.note = sides[0] if sizes[-1] >= sizes[0] else None
        elif name in SUMS and are_factors and "alpha" not in given:
            shared = sides[0].inputs & sides[1].inputs if len(sides) > 1 else frozenset()
            result.note = _Whole(inputs - shared, is_computed=True)
        elif is_power or name in ("sum", "mean") or (name in PRODUCTS and are_factors):
            result.note = _Whole(inputs, is_computed=True)


def find_read_whole(definition: Definition, workload: Workload) -> dict[str, float]:
    """Return the bytes of each input that the reference provably reads whole, by name; empty if nothing is proven.

    Only inputs with normal random values count: none of them can be a mask. The reference is compiled anew, since one
    that keeps tensors would keep some without values.
    """
    with suppress(WorkloadFault):
        axes, shapes = bind_axes(definition, workload)
        given = dict[str, Any]()
        normal = dict[str, float]()
        for name, spec in definition.inputs.items():
            source, shape = workload.inputs.get(name), shapes[name]
            if shape is None or (source is None and spec.optional):
                given[name] = source.value if isinstance(source, ScalarInput) else None
                continue
            is_random = isinstance(source, RandomInput | None)
            if is_random and find_freedom(Blank(name, definition, shape, axes)).deviation is not None:
                normal[name] = math.prod(shape) * DTYPES[spec.dtype].bits / 8
        values = find_plain_values(definition, axes, given, has_integers=False)
        follower = _Follower(normal)
        returned = run(Reference.compile(definition), values, follower)
        if follower.end != DONE or not follower.is_open:
            return {}
        outputs = returned.values() if isinstance(returned, Mapping) else returned
        outputs = outputs if isinstance(outputs, (list, tuple)) or isinstance(returned, Mapping) else [outputs]
        found = [follower.find(output) for output in outputs]
        read = {name for one in found if one is not None and one.is_computed for name in one.inputs}
        return {name: normal[name] for name in sorted(read)}
    return {}
