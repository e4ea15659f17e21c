"""Inputs of other regimes, which a few calls of a job get in secret. They serve correctness, never the latency.

Usual inputs are normal values around zero, near one. There x passes for 30 tanh(x / 30), rows need no normalisation, a
part of a row tells the size of all of it, and a mean is nothing. In another regime these are wrong. Only random floats
that a definition leaves free are changed: no stored values, no scales, probabilities or gates, whose range means
something. `regime_values.py` says how.
"""

from __future__ import annotations

import ast
import math
import random
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.inputs.make import bind_axes
from flashinfer_bench.bench.evaluators.inputs.random_values import Blank
from flashinfer_bench.bench.evaluators.inputs.regime_values import REGIMES, SharedPlaces
from flashinfer_bench.bench.evaluators.inputs.rules import is_free
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed, make_generator
from flashinfer_bench.bench.evaluators.inputs.writer import MULTIPLIED
from flashinfer_bench.data import Definition, RandomInput, Workload
from flashinfer_bench.data.dtypes import DTYPES

IN_ALL_JOBS: Final = ("few_large", "offset")
"""These come in every job; a job of three trials has the others, too."""
OTHERS: Final = ("larger", "smaller", "heavy_tails")
MORE_IN_LAST: Final = len(IN_ALL_JOBS) + len(OTHERS) - 3
"""The last trial has so many more than one."""
FEW_NUMBERS: Final = 16
"""An output of fewer elements may be right by chance on inputs of a regime: of a single number, who looks at half of a
row is off by no more than roundings may move it in 45 of 100 calls."""
MORE_CALLS: Final = 3
"""So there each trial has so many more calls of these regimes."""
FOR_FEW_NUMBERS: Final = ("smaller", "one_row")
FOR_CONSTANTS: Final = ("spike", "far", "offset")
"""Each trial has more calls of these where an output of whole numbers or bools is the same on all usual inputs: the
only ones that may change it are strong, and often rare."""
SPIKE_CALLS: Final = 12
"""Calls of the first of these in a job, at least: who looks at half of an input misses what one of them shows in all of
them once in 4,000 jobs, where that counts with either sign."""
MOST_BYTES: Final = 1 << 30
"""Inputs of the calls that a trial has more for that are kept until they are judged. Of larger ones there are fewer
calls, one at least."""
NONFINITE: Final = "nonfinite"
"""The regime beside these for references that look for values that are no numbers."""
FOR_CONSTANTS_ALONE: Final = frozenset({"spike", "far", NONFINITE})
"""Floats are not judged in these: kernels that round to float16 have no such numbers between their operations."""
LOOKS_FOR_NONFINITE: Final = re.compile(r"^(isnan|isinf|isfinite|isposinf|isneginf|nan_to_num|nan_to_num_)$")
CHOOSES: Final = re.compile(
    r"topk|top_k|argmax|argmin|argsort|kthvalue|multinomial|one_hot|bernoulli"
    r"|(?:^|_)(?:m?sort$|round_?$|rand|poisson|dropout)|^_?sampl|^(?:exponential|normal|uniform)_$"
)
"""A name in a reference that chooses or draws: in another regime its choices may all tie."""
CHOOSES_IN_TEXT: Final = re.compile(
    r"topk|top_k|argmax|argmin|argsort|sort\(|kthvalue|multinomial|round\(|one_hot|rand|bernoulli"
)
"""The same in the text of a reference that cannot be parsed."""
CHOOSING_OP_TYPES: Final = frozenset({"moe", "sampling", "top_k"})


def why_no_regimes(definition: Definition) -> str | None:
    """Say why a definition is judged on usual inputs only; None where it is not."""
    is_float = [DTYPES[spec.dtype].kind == "float" for spec in definition.outputs.values()]
    if definition.op_type in CHOOSING_OP_TYPES or not any(is_float):
        return "its outputs choose"
    return "its reference chooses" if chooses(definition.reference or "") else None


@lru_cache(maxsize=256)
def chooses(source: str) -> bool:
    """Tell by the names in a reference whether it chooses or draws; texts and comments are no names."""
    names = _names_in(source)
    return CHOOSES_IN_TEXT.search(source) is not None if names is None else any(map(CHOOSES.search, names))


def looks_for_nonfinite(source: str) -> bool:
    """Tell by the names in a reference whether it looks for values that are infinite or no numbers."""
    return any(map(LOOKS_FOR_NONFINITE.search, _names_in(source) or []))


def _names_in(source: str) -> list[str] | None:
    """Return the names in a source; None where it cannot be parsed."""
    try:
        return [name for node in ast.walk(ast.parse(source)) for name in _names(node)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _names(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.alias(name=name):
            return tuple(name.split("."))
        case _:
            return ()


def has_few_numbers(definition: Definition, workload: Workload) -> bool:
    """Say whether an output of floats has few elements; False also where its shape cannot be told."""
    try:
        shapes = definition.get_output_shapes(workload.axes)
    except (KeyError, ValueError):
        return False
    specs = zip(definition.outputs.values(), shapes, strict=True)
    return any(0 < math.prod(shape or ()) < FEW_NUMBERS for spec, shape in specs if DTYPES[spec.dtype].kind == "float")


class Regimes:
    """The regimes of one job.

    Args:
        definition: what is computed.
        workload: says which inputs are random.
        seed: of the job; nobody outside the judge knows it while the job is judged.
        has_constants: whether outputs that are the same on all usual inputs are tried on others, too.
    """

    def __init__(self, definition: Definition, workload: Workload, seed: int, *, has_constants: bool = False) -> None:
        self._seed = derive_seed(seed, "regimes")
        axes, shapes = bind_axes(definition, workload)
        self.free = [
            shape is not None
            and len(shape) > 0
            and math.prod(shape) > 0
            and (name not in workload.inputs or isinstance(workload.inputs[name], RandomInput))
            and is_free(Blank(name, definition, shape, axes, {}, 0, torch.device("cpu")))
            for name, shape in shapes.items()
        ]
        """Which inputs are changed, in the order of the definition."""
        self._axes = [tuple(spec.shape or ()) for spec in definition.inputs.values()]
        self._for_few = [*FOR_FEW_NUMBERS] * (MORE_CALLS if has_few_numbers(definition, workload) else 0)
        self._for_constants: list[str] = []
        if has_constants:
            is_asked = looks_for_nonfinite(definition.reference or "")
            self._for_constants = [*FOR_CONSTANTS[:1], *([NONFINITE] if is_asked else []), *FOR_CONSTANTS[1:]]
        specs = zip(definition.inputs.values(), shapes.values(), strict=True)
        size = sum(math.prod(shape or ()) * DTYPES[spec.dtype].bits // 8 for spec, shape in specs)
        self._most_for_constants = max(1, MOST_BYTES // max(size, 1))

    @property
    def names(self) -> list[str]:
        """All regimes that the job may have."""
        return list(dict.fromkeys((*IN_ALL_JOBS, *OTHERS, *self._for_constants, *self._for_few)))

    def choose(self, trial: int, trials: int) -> list[str]:
        """Return the regimes of a trial: one in each, the rest in the last; and more for outputs of few numbers."""
        chance = random.Random(self._seed)
        others = chance.sample(OTHERS, len(OTHERS))
        wanted = [*IN_ALL_JOBS, *others][: trials + MORE_IN_LAST]
        chance.shuffle(wanted)
        chosen = wanted[trial : trial + 1] if trial < trials - 1 else wanted[trial:]
        spikes = [FOR_CONSTANTS[0]] * (math.ceil(SPIKE_CALLS / trials) - 1 if self._for_constants else 0)
        strong = [*self._for_constants, *spikes][: self._most_for_constants]
        return [*strong, *self._for_few, *chosen]  # a trial of slow calls has the first only

    def change(self, name: str, number: int, values: Sequence[torch.Tensor | None]) -> None:
        """Turn usual inputs of a call into those of a regime, in place."""
        for index, (is_changed, value) in enumerate(zip(self.free, values, strict=True)):
            if is_changed and value is not None and value.dtype in MULTIPLIED:
                generator = make_generator(self._seed, name, number, index, device=value.device)
                axes = self._axes[index]
                shared = [
                    make_generator(self._seed, name, number, *of, device=value.device) for of in (axes[-1:], axes[:-1])
                ]
                REGIMES[name](value, generator, SharedPlaces(*shared))
