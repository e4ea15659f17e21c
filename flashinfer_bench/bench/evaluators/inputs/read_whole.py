"""Inputs that a reference provably reads whole: each of their elements changes what it returns.

The reference is called once with tensors that have shapes and no values (torch's device "meta"), and its operations are
followed. Whatever is not listed here proves nothing: indices, slices, masks, branches on values, loops, writes in
place. Nor do functions that may vanish or saturate: what they are multiplied with may be left unread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashinfer_bench.bench.evaluators.compare.packed import storage_shape
from flashinfer_bench.bench.evaluators.inputs.make import bind_axes
from flashinfer_bench.bench.evaluators.inputs.random_values import Blank
from flashinfer_bench.bench.evaluators.inputs.rules import find_deviation
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.data import Definition, RandomInput, ScalarInput, Workload
from flashinfer_bench.data.dtypes import DTYPES, torch_dtype
from flashinfer_bench.errors import WorkloadFault

MOST_OPERATIONS: Final = 300
"""A reference that calls more operations of torch proves nothing: it loops, and is followed for no longer than this."""
LAYOUT: Final = frozenset(
    {"view", "_unsafe_view", "t", "transpose", "permute", "unsqueeze", "squeeze", "expand"}
    | {"alias", "detach", "slice", "clone", "_to_copy"}
)
"""They keep all elements, where there are no fewer afterwards."""
SUMS: Final = frozenset(("add", "sub", "div"))
"""What both sides depend on may cancel out."""
PRODUCTS: Final = frozenset(("mul", "mm", "bmm", "mv", "dot", "sum", "mean", "neg", "sqrt", "rsqrt"))


@dataclass(frozen=True)
class _Whole:
    """What is known of a tensor: each element of these inputs changes it."""

    inputs: frozenset[str]
    is_computed: bool = False
    """It is no copy of an input: who returns a copy may return the input's own memory, and read nothing."""


class _Follower(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no types for it
    """Follows what the operations of torch do with inputs.

    Args:
        inputs: the tensors of which each element is to be read, by name.
    """

    def __init__(self, inputs: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {id(tensor): _Whole(frozenset([name])) for name, tensor in inputs.items()}
        self._held: list[torch.Tensor] = list(inputs.values())
        """Tensors are known by their identity, so none is let go; they have no memory."""
        self._left = MOST_OPERATIONS

    def find(self, tensor: Any) -> _Whole | None:
        """Return what is known of a tensor; None where nothing is."""
        return self._known.get(id(tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._left -= 1
        if func._schema.is_mutable or self._left < 0:
            raise NotImplementedError(f"{func} proves nothing")
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            found = self._follow(func, args, kwargs or {}, result)
            if found is not None:
                self._known[id(result)] = found
                self._held.append(result)
        return result

    def _follow(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: torch.Tensor) -> _Whole | None:
        given = [value for value in args if isinstance(value, torch.Tensor)]
        known = [self.find(tensor) for tensor in given]
        sides = [side for side in known if side is not None]
        sizes = [tensor.numel() for tensor in (*given, result)]
        if len(sides) < len(known) or not sides or 0 in sizes or not result.is_floating_point():
            return None
        name = func._schema.name.removeprefix("aten::")
        if name in LAYOUT:
            return sides[0] if sizes[-1] >= sizes[0] else None
        inputs = frozenset[str]().union(*(side.inputs for side in sides))
        if name in SUMS and not kwargs and _are_factors(args):
            shared = sides[0].inputs & sides[1].inputs if len(sides) > 1 else frozenset()
            return _Whole(inputs - shared, is_computed=True)
        is_power = name == "pow" and func._overloadname == "Tensor_Scalar" and args[1] in (2, 0.5, -0.5)
        is_product = name in PRODUCTS and (name in ("sum", "mean") or _are_factors(args))
        return _Whole(inputs, is_computed=True) if is_power or is_product else None


def _are_factors(args: Iterable[Any]) -> bool:
    """Tell whether the numbers among arguments are neither zero, which lets go of the others, nor infinite."""
    return all(isinstance(value, torch.Tensor) or (value and math.isfinite(value)) for value in args)


def find_read_whole(definition: Definition, workload: Workload) -> dict[str, float]:
    """Return the bytes of each input that the reference provably reads whole, by name; empty where nothing is proven.

    Only inputs with normal random values count: none of them can be a mask. The reference is compiled anew, since one
    that keeps tensors would keep some without values.
    """
    with suppress(WorkloadFault):
        axes, shapes = bind_axes(definition, workload)
        values: dict[str, Any] = {}
        normal: dict[str, torch.Tensor] = {}
        for name, spec in definition.inputs.items():
            source, shape = workload.inputs.get(name), shapes[name]
            if shape is None:
                values[name] = source.value if isinstance(source, ScalarInput) else None
                continue
            if source is None and spec.optional:
                values[name] = None
                continue
            stored = storage_shape(shape, spec.dtype)
            values[name] = torch.empty(stored, dtype=torch_dtype(spec.dtype), device="meta")
            blank = Blank(name, definition, shape, axes, {}, 0, torch.device("meta"))
            if isinstance(source, RandomInput | None) and find_deviation(blank) is not None:
                normal[name] = values[name]
        reference = Reference.compile(definition)
        with _Follower(normal) as follower:
            returned = reference.launch(list(values.values()))
        outputs = returned.values() if isinstance(returned, Mapping) else returned
        outputs = outputs if isinstance(outputs, Iterable) and not isinstance(outputs, torch.Tensor) else [outputs]
        found = [follower.find(output) for output in outputs]
        read = {name for one in found if one is not None and one.is_computed for name in one.inputs}
        return {name: normal[name].numel() * DTYPES[definition.inputs[name].dtype].bits / 8 for name in sorted(read)}
    return {}
