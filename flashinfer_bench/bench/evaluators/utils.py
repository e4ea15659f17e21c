"""Parts of the judge for debugging in this process, where NOTHING IS ISOLATED; evaluators of runs use other parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.compare.packed import storage_shape
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.bench.evaluators.selection.dsa import DSAEvaluator
from flashinfer_bench.data import Definition
from flashinfer_bench.data.dtypes import torch_dtype

resolve_evaluator: Final = find_evaluator
"""Gives the evaluator that judges a definition."""
DsaSparseAttentionEvaluator: Final = DSAEvaluator
DsaTopkIndexerEvaluator: Final = DSAEvaluator
"""One evaluator judges both kinds of definition."""


def allocate_outputs(
    definition: Definition, inputs: Sequence[Any] | Mapping[str, int], device: torch.device | str
) -> list[torch.Tensor]:
    """Return an uninitialised tensor for each output, in order.

    Args:
        definition: says which outputs there are.
        inputs: the inputs, in order; or the sizes of the var axes.
        device: where the tensors lie.
    """
    sizes = inputs if isinstance(inputs, Mapping) else definition.get_axes_values_from_inputs(inputs)
    shapes = definition.get_output_shapes(sizes)
    return [
        torch.empty(storage_shape(shape or (), spec.dtype), dtype=torch_dtype(spec.dtype), device=device)
        for spec, shape in zip(definition.outputs.values(), shapes, strict=True)
    ]


def normalize_result(definition: Definition, result: Any, device: torch.device | str) -> list[torch.Tensor]:
    """Return what a function returned as a list of tensors in the order of the outputs.

    It may be one value, a tuple or a list of them, or a dict by output name; a number becomes a 0-d tensor.

    Raises:
        ValueError: there are too few or too many values, or names that are no outputs.
        TypeError: a value is neither a tensor nor a number.
    """
    names = list(definition.outputs)
    if isinstance(result, Mapping):
        if set(result) != set(names):
            raise ValueError(f"{definition.name} has the outputs {', '.join(names)}, got {', '.join(map(str, result))}")
        values = [result[name] for name in names]
    else:
        values = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(values) != len(names):
        raise ValueError(f"{definition.name} has {len(names)} outputs ({', '.join(names)}), got {len(values)} values")
    return [_to_tensor(value, name, definition, device) for name, value in zip(names, values, strict=True)]


def _to_tensor(value: Any, name: str, definition: Definition, device: torch.device | str) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (bool, int, float)):
        return torch.tensor(value, dtype=torch_dtype(definition.outputs[name].dtype), device=device)
    raise TypeError(f"output {name!r} of {definition.name} is a {type(value).__name__}, not a tensor or a number")
