"""Functions of the judge for debugging in the caller's own process, where NOTHING IS ISOLATED."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.compare.packed import storage_shape
from flashinfer_bench.bench.evaluators.reference import normalize_result
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.bench.evaluators.selection.dsa import DSAEvaluator
from flashinfer_bench.data import Definition
from flashinfer_bench.data.dtypes import torch_dtype

__all__ = ["allocate_outputs", "normalize_result", "resolve_evaluator"]

resolve_evaluator: Final = find_evaluator
"""Returns the evaluator that judges a definition."""
DsaSparseAttentionEvaluator: Final = DSAEvaluator
DsaTopkIndexerEvaluator: Final = DSAEvaluator
"""One evaluator judges sparse attention and top-k indexers."""


def allocate_outputs(
    definition: Definition, inputs: Sequence[Any] | Mapping[str, int], device: torch.device | str
) -> list[torch.Tensor]:
    """Return an uninitialised tensor for each output, in order.

    Args:
        definition: names the outputs.
        inputs: the inputs, in order; or the sizes of the var axes.
        device: device of the tensors.
    """
    sizes = inputs if isinstance(inputs, Mapping) else definition.get_axes_values_from_inputs(inputs)
    shapes = definition.get_output_shapes(sizes)
    return [
        torch.empty(storage_shape(shape or (), spec.dtype), dtype=torch_dtype(spec.dtype), device=device)
        for spec, shape in zip(definition.outputs.values(), shapes, strict=True)
    ]
