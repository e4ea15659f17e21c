"""The sources that translate FlashInfer's call to the call of a solution. No source is run here.

A wrapper is an additional file of a solution. The wrapper imports the solution by path, since Trace Apply loads one
file and does not extend the import path. A wrapper returns its results, and Trace Apply copies them into the caller's
buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import Template
from typing import Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.solution import Solution

HEAD: Final = '''"""Made by flashinfer-bench: translates a call of FlashInfer to the call of $definition."""

import importlib.util
import sys
from pathlib import Path

import torch

_DTYPES = ($dtypes)


def _load():
    spec = importlib.util.spec_from_file_location(__name__ + "_entry", Path(__file__).parent / $path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, $symbol)


_solution = _load()


def _prepare(value, dtype):
    if dtype is None or value is None:
        return value
    if value.dtype is not dtype and (value.is_floating_point() or dtype.is_floating_point):
        raise TypeError(f"$definition takes {dtype} here, not {value.dtype}")
    return value.to(dtype).contiguous()


def _call(*inputs):
    inputs = tuple(map(_prepare, inputs, _DTYPES))
'''
RETURNING: Final = """\
    results = _solution(*inputs)
    if isinstance(results, dict):
        results = [results[name] for name in $names]
    return tuple(results) if isinstance(results, (list, tuple)) else (results,)
"""
WRITING: Final = """\
    device = next(one.device for one in inputs if isinstance(one, torch.Tensor))
    results = ($buffers)
    _solution(*inputs, *results)
    return results
"""
IDENTITY: Final = """

def run(*, $parameters):
    results = _call($inputs)
    return results[0] if len(results) == 1 else results
"""
GEMM: Final = """

def run(A, B):
    return _call(A, B.t())[0]
"""
ATTENTION: Final = """

def run($tensors, sm_scale=None, return_lse=False):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    output, lse = _call(*(one.to(q.device) for one in ($tensors)), scale)
    return (output, lse) if return_lse else output
"""
PAGED: Final = ATTENTION.replace(
    "    scale =",
    """\
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("$definition takes contiguous caches")
    scale =""",
)
"""Refuses strided caches. Copying a cache in each call would take too long."""
ROPE: Final = """

def run(positions, query, key, head_size, cos_sin_cache, is_neox=True):
    if not is_neox or cos_sin_cache.shape[-1] != $rd:
        raise ValueError("$definition rotates $rd values of a head in the Neox style, and no others")
    heads = [one.reshape(one.shape[0], -1, head_size) for one in (query, key)]
    query_out, key_out = _call(*heads, cos_sin_cache, positions)
    return query_out.reshape(query.shape), key_out.reshape(key.shape)
"""
SAMPLER: Final = """

def _per_row(value, probs):
    if not isinstance(value, torch.Tensor):
        dtype = torch.int32 if isinstance(value, int) else torch.float32
        value = torch.full((1,), value, dtype=dtype, device=probs.device)
    return (value.float() if value.is_floating_point() else value).expand(probs.shape[0])


def run($tensors):
    samples = _call(probs.float(), *(_per_row(one, probs) for one in ($tensors)[1:]))[0]
    return samples.to(torch.int32)
"""


def write_wrapper(
    template: str, solution: Solution, definition: Definition, sizes: Mapping[str, str], *, writes: bool
) -> str:
    """Return the source of a wrapper.

    Args:
        template: the source of `run`; empty if FlashInfer passes the definition's inputs directly.
        sizes: group of the pattern → the size in the definition's name.
        writes: whether the caller passes the outputs to the solution.

    Raises:
        ValueError: the wrapper cannot allocate an output, because its size is computed.
    """
    inputs, outputs = definition.inputs, definition.outputs
    order = list(inputs)
    lengths = {
        axis: f"inputs[{order.index(name)}].shape[{at}]" for axis, (name, at) in definition.var_axes_bindings.items()
    }
    lengths |= {axis: str(length) for axis, length in definition.const_axes.items()}
    used = {axis for spec in outputs.values() for axis in spec.shape or () if not axis.isdigit()}
    if writes and (computed := used.difference(lengths)):
        raise ValueError(f"the wrapper cannot compute the size {computed.pop()!r} of its output")
    dtypes = [f"torch.{spec.dtype}" if spec.shape is not None else "None" for spec in inputs.values()]
    shapes = {name: _tuple_of(lengths.get(axis, axis) for axis in spec.shape or ()) for name, spec in outputs.items()}
    buffers = [f"torch.empty(({shapes[name]}), dtype=torch.{outputs[name].dtype}, device=device)" for name in outputs]
    return Template(HEAD + (WRITING if writes else RETURNING) + (template or IDENTITY)).substitute(
        sizes,
        definition=definition.name,
        path=repr(str(solution.get_entry_path())),
        symbol=repr(solution.get_entry_symbol()),
        dtypes=_tuple_of(dtypes),
        names=repr(tuple(outputs)),
        buffers=_tuple_of(buffers),
        parameters=", ".join(f"{name}=None" if spec.optional else name for name, spec in inputs.items()),
        inputs=", ".join(inputs),
        tensors=", ".join(name for name, spec in inputs.items() if spec.shape is not None),
    )


def _tuple_of(parts: Iterable[str]) -> str:
    return "".join(f"{part}, " for part in parts).rstrip()
