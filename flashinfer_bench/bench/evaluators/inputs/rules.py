"""Decides which random values an input gets, by two tables of rules. The first rule that fits an input is used.

A rule fits if the op type, the kind of dtype and the input's whole name in lower case match. A definition expresses the
meaning of an integer only by the input's name. The rules at the end of each table fit all names. The last column
describes the values in words. `find_varied_input` returns how an input may differ from call to call, and whether stress
cases may change it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import torch

from flashinfer_bench.bench.evaluators.inputs import integers
from flashinfer_bench.bench.evaluators.inputs.constraints import asking_for
from flashinfer_bench.bench.evaluators.inputs.distributions import (
    ANY,
    Make,
    Mode,
    Rule,
    ValueSpec,
    fill_bytes,
    find_rule,
    normal,
    uniform,
    uniform_logs,
)
from flashinfer_bench.data.dtypes import POWERS_OF_TWO

SCALE_RANGE: Final = (0.5, 1.5)
"""Range of quantisation scales. The scales are near 1, so that scaled values keep their magnitude."""
STEP_RANGE: Final = (0.001, 0.1)
"""Range of the steps of a state-space model. A step is the softplus of a value plus a bias. The product of a step and a
channel's rate says how much the channel forgets in this step. Models are initialised with such biases. With steps near
one, all channels would forget within 20 steps."""
DELTA_STEP_RANGE: Final = (0.01, 1.0)
"""Range of the steps of a gated delta net. With smaller steps, the outputs would grow with the net's memory, and code
that rounds to bfloat16 would be rejected. The state also forgets without decay, since new keys overwrite old keys."""
RATE_RANGE: Final = (1.0, 16.0)
"""Range of the channels' rates if steps have a bias. The slowest channels then forget within hundreds of steps, the
fastest channels within one step."""
LONE_RATE_RANGE: Final = (0.001, 16.0)
"""Range of the channels' rates if steps have no bias. Without a bias, steps are near one, and the rates alone decide
how long a channel remembers."""
LOGIT_DEVIATION: Final = 3.0
ABSORBED_HEAD_DIM: Final = 128
"""Elements of a DeepSeek query without its rotary part, before the projection is absorbed. No axis of an mla definition
has this size."""
FEW_BOOLS: Final = 64
"""Minimum elements of a bool input that is made anew. In a shorter input all elements could become false, and a mask
could select nothing. So a shorter input is only rotated."""
FEW_INTEGERS: Final = 4096
"""Minimum elements of an input of integers without structure that is made anew. Fewer integers may be amounts of work,
so calls would take times of their own."""
STEP_BIAS: Final = "dt_bias"
NO_NUMBERS: Final = r"scale|zero|mask|flag|sign|type|code|bits"
"""A stored int8 input with one of these words in its name holds no quantised numbers."""
PROBABILITIES: Final = r"((draft|target)_)?prob(s|abilities)"

Kind = Literal["float", "float8", "bytes", "bools"]


@dataclass(frozen=True)
class VariedInput:
    """How an input differs from call to call."""

    name: str
    mode: Mode = "fixed"
    remake: Callable[[int], torch.Tensor] | None = None
    """Makes a "redrawn" input from a seed; None if it is stored."""
    deviation: float | None = None
    """Standard deviation of a random input that is normal around zero, in a dtype of more than 8 bits."""
    is_perturbed: bool = False
    """Whether a "rolled" input holds quantised numbers, which may change a little."""
    kind: Kind | None = None
    """Kind of the input for stress cases; None if the input is not random, or if a rule fixes its range."""


def find_varied_input(
    value_spec: ValueSpec, *, is_random: bool = True, has_stored_integers: bool = False
) -> VariedInput:
    """Return how an input differs from call to call. A random input is made anew by its rule, unless it gives
    structure. Its valid integers may depend on stored integers; then it stays the same."""
    rule, dtype, name = find_rule(TENSOR_RULES, value_spec), value_spec.dtype, value_spec.name
    is_float, is_wide, is_any = dtype.kind == "float", dtype.bits > 8, rule.name == ANY
    by_dtype: Mode = "scaled" if is_float and is_wide else "fixed" if is_wide or rule.make is even else "rolled"
    mode = rule.mode or by_dtype
    has_codes = is_float and not is_wide and rule.deviation is not None and value_spec.dtype_name != POWERS_OF_TWO
    if not is_random:
        is_int8 = value_spec.dtype_name == "int8" and is_any and not re.search(NO_NUMBERS, name.lower())
        is_quantised = (has_codes or is_int8) and not asking_for(value_spec.definition.constraints, name)
        return VariedInput(name, mode, is_perturbed=is_quantised and mode == "rolled")
    kind: Kind | None = None
    if rule.make is even:
        kind = "bools" if math.prod(value_spec.shape) >= FEW_BOOLS else None
    elif has_codes:
        kind = "float8" if dtype.bits == 8 else None
    elif rule.make is fill_bytes:
        kind = None if is_wide else "bytes"
    elif is_float and is_wide and is_any:
        kind = "float"
    has_numbers = rule.make in (integers.CLASSES, integers.NUMBERS) and math.prod(value_spec.shape) >= FEW_INTEGERS
    has_numbers = has_numbers and not has_stored_integers
    is_free = is_float or has_numbers or rule.make is fill_bytes or kind == "bools" or mode == "redrawn"
    if not is_free or rule.mode == "fixed":
        return VariedInput(name, "rolled" if rule.make is even else mode)
    deviation = rule.deviation(value_spec) if rule.deviation is not None and is_wide else None
    remake = partial(_remake, rule, value_spec)
    return VariedInput(name, "redrawn", remake, deviation=deviation, kind=kind)


def _remake(rule: Rule, value_spec: ValueSpec, seed: int) -> torch.Tensor:
    return _make(rule, replace(value_spec, seed=seed))


def make_tensor(value_spec: ValueSpec) -> torch.Tensor:
    """Make a random tensor input."""
    return _make(find_rule(TENSOR_RULES, value_spec), value_spec)


def _make(rule: Rule, value_spec: ValueSpec) -> torch.Tensor:
    made: torch.Tensor = (
        rule.make(value_spec) if rule.deviation is None else normal(value_spec, rule.deviation(value_spec))
    )
    return made


def make_number(value_spec: ValueSpec) -> bool | int | float:
    """Make a random input that is a single Python number."""
    if value_spec.name in value_spec.axes:
        return value_spec.axes[value_spec.name]
    made = find_rule(NUMBER_RULES, value_spec).make(value_spec)
    number: bool | int | float = made.item() if isinstance(made, torch.Tensor) else made
    return number


def _softmax_rows(value_spec: ValueSpec) -> torch.Tensor:
    """Make rows of probabilities, from nearly flat to nearly certain, like those of language models."""
    generator = value_spec.generator(value_spec.device)
    logits = torch.empty(value_spec.shape, device=value_spec.device).normal_(generator=generator)
    sharpness = torch.empty_like(logits[..., :1]).uniform_(1.0, 5.0, generator=generator)
    return value_spec.finish(logits.mul_(sharpness).softmax(dim=-1))


def _unit_rows(value_spec: ValueSpec) -> torch.Tensor:
    return value_spec.finish(torch.nn.functional.normalize(normal(value_spec).float(), dim=-1))


def _cos_sin(value_spec: ValueSpec) -> torch.Tensor:
    """Make a cache of rotary embeddings: cosines in the first half of a row, sines in the second half."""
    half = value_spec.shape[-1] // 2
    frequency = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / max(half, 1))
    angle = torch.arange(value_spec.shape[0], dtype=torch.float64)[:, None] * frequency
    return value_spec.finish(torch.cat((angle.cos(), angle.sin()), dim=-1))


def _log_rates(value_spec: ValueSpec) -> torch.Tensor:
    has_bias = any(name.lower() == STEP_BIAS for name in value_spec.definition.inputs)
    return uniform_logs(value_spec, *(RATE_RANGE if has_bias else LONE_RATE_RANGE))


def _log_decay(value_spec: ValueSpec) -> torch.Tensor:
    return value_spec.finish(_log_rates(value_spec))


def _decay(value_spec: ValueSpec) -> torch.Tensor:
    return value_spec.finish(_log_rates(value_spec).exp_().neg_())


def _step_bias(low: float, high: float) -> Make:
    """Make biases whose softplus is a step: softplus(step + log(1 - exp(-step))) is the step."""

    def make(value_spec: ValueSpec) -> torch.Tensor:
        steps = uniform_logs(value_spec, low, high).exp_()
        return value_spec.finish(steps + torch.log(-torch.expm1(-steps)))

    return make


def _weights_scale(value_spec: ValueSpec) -> torch.Tensor:
    """Make scales of quantised weights, so that products of the weights with normal inputs have a magnitude near 1."""
    stem = re.sub(r"_scales?$", "", value_spec.name)
    weights = {"output1": "gemm1_weights", "output2": "gemm2_weights"}.get(value_spec.name[:7], stem)
    shapes = dict(
        zip(value_spec.definition.inputs, value_spec.definition.get_input_shapes(value_spec.axes), strict=True)
    )
    fan_in = (shapes.get(weights) or (1,))[-1]
    return uniform(value_spec, *(bound * math.sqrt(1 / max(fan_in, 1)) for bound in SCALE_RANGE))


def _moe_deviation(value_spec: ValueSpec) -> float:
    return 1.0 if value_spec.dtype.bits <= 8 else math.sqrt(1 / max(value_spec.shape[-1], 1))


def even(value_spec: ValueSpec) -> torch.Tensor:
    """Make bools that are true as often as false."""
    generator = value_spec.generator(value_spec.device)
    return torch.rand(value_spec.shape, generator=generator, device=value_spec.device) < 0.5


def _softmax_scale(value_spec: ValueSpec) -> float:
    """Return 1 / sqrt(d) with the head dimension d of queries and keys; for mla, d before absorption."""
    rope = value_spec.size("head_dim_kpe", "qk_rope_head_dim")
    if value_spec.size("head_dim_ckv") is not None and rope is not None:
        return math.sqrt(1 / (ABSORBED_HEAD_DIM + rope))
    return math.sqrt(1 / max(value_spec.size("qk_dim", "head_dim_qk", "head_dim", "head_size") or 128, 1))


def _between(low: float, high: float) -> Make:
    return partial(uniform, low=low, high=high)


TENSOR_RULES: Final[tuple[Rule, ...]] = (
    *integers.INTEGER_RULES,
    # op types whose inputs must fit each other
    Rule("sampling", "float", PROBABILITIES, _softmax_rows, "softmax rows of mixed sharpness", "redrawn"),
    Rule("sampling", "float", r".*logits", normal, "normal, deviation 3", deviation=lambda _: LOGIT_DEVIATION),
    Rule("gdn", "float", r"k", _unit_rows, "normal rows of unit length: longer keys make the state explode", "redrawn"),
    Rule("gdn", "float", "a", normal, "normal; the softplus of far larger values overflows", deviation=lambda _: 1.0),
    Rule("gdn|mamba.*", "float", "a_log", _log_decay, "logarithm of 1 to 16; without `dt_bias` 0.001 to 16", "redrawn"),
    Rule("mamba.*", "float", r"a", _decay, "-16 to -1; without `dt_bias` -16 to -0.001; all magnitudes alike"),
    Rule("gdn", "float", STEP_BIAS, _step_bias(*DELTA_STEP_RANGE), "its softplus is 0.01 to 1", "redrawn"),
    Rule("mamba.*", "float", STEP_BIAS, _step_bias(*STEP_RANGE), "its softplus is 0.001 to 0.1", "redrawn"),
    Rule(
        *("moe", "float", r"gemm\d_weights|w\d+", normal, "normal; not quantised: divided by sqrt(fan-in)"),
        deviation=_moe_deviation,
    ),
    Rule("moe", "float", r".*weights_scales?|output\d_scales.*", _weights_scale, "0.5 to 1.5, divided by sqrt(fan-in)"),
    # names that mean the same everywhere
    Rule(ANY, "float", r"top_?ps?", _between(0.1, 1.0), "0.1 to 1", "rolled"),
    Rule(ANY, "float", r"min_?ps?", _between(0.01, 0.2), "0.01 to 0.2", "rolled"),
    Rule(ANY, "float", r"temperatures?", _between(0.5, 1.5), "0.5 to 1.5", "rolled"),
    Rule(ANY, "float", r"cos_sin_cache", _cos_sin, "cosines and sines of rotary angles", "fixed"),
    Rule(ANY, "float", r".*scale.*", _between(*SCALE_RANGE), "0.5 to 1.5; exponents: 2 ** -2 to 2 ** 2"),
    # by dtype
    Rule(
        *(ANY, "float", ANY, normal, "normal; packed 4-bit: any code; exponents: 2 ** -2 to 2 ** 2"),
        deviation=lambda _: 1.0,
    ),
    Rule(ANY, "bool", ANY, even, "even"),
)

NUMBER_RULES: Final[tuple[Rule, ...]] = (
    # `make_number` uses these rules only if no axis has the input's name; else the number is the size of that axis.
    Rule(ANY, "float", r"(sm_|softmax_|attn_|attention_)?scal(e|ing)", _softmax_scale, "1 / sqrt(head dimension)"),
    Rule(ANY, "float", r".*(eps|epsilon)", lambda _: 1e-6, "1e-6"),
    Rule(ANY, "float", r"top_?p", _between(0.1, 1.0), "0.1 to 1"),
    Rule(ANY, "float", r"min_?p", _between(0.01, 0.2), "0.01 to 0.2"),
    Rule(ANY, "float", r".*theta", lambda _: 10_000.0, "10000"),
    Rule(ANY, "float", r".*soft_?cap", lambda _: 30.0, "30"),
    Rule(ANY, "float", ANY, _between(0.5, 1.5), "0.5 to 1.5"),
    Rule(ANY, "int uint", r"top_?k", integers.top_k, "1 to the vocabulary"),
    Rule(ANY, "int uint", r".*offset", lambda _: 0, "0"),
    Rule(ANY, "int uint", ANY, lambda _: 1, "1"),
    Rule(ANY, "bool", r".*causal", lambda _: True, "true"),
    Rule(ANY, "bool", ANY, lambda _: False, "false"),
)
