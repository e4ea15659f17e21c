"""Which random values an input gets: two tables of rules. The first rule that fits decides.

A rule fits where the op type, the kind of dtype and the input's whole name in lower case match. Definitions say only by
its name what an integer means. The rules at the end of each table fit all names. The last column says in words what
the values are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs import integers, random_values
from flashinfer_bench.bench.evaluators.inputs.random_values import ANY, Blank, Rule, Way, find_rule
from flashinfer_bench.data.dtypes import DTYPES

SCALE_RANGE: Final = (0.5, 1.5)
"""Range of quantisation scales. They are near 1, so a product of normal values keeps their magnitude."""

STEP_RANGE: Final = (0.001, 0.1)
"""Range of the steps of a state, to which a bias is added before the softplus that makes them. A step times the rate of
a channel says how much the channel forgets in it. Models begin with such biases: with steps near one all channels would
forget within 20 steps."""
DELTA_STEP_RANGE: Final = (0.01, 1.0)
"""The same of a gated delta net, whose outputs grow with what it remembers: with steps of 0.003 one in 1,200 verdicts
on code that rounds to bfloat16 was wrong. It forgets by itself, too, since new keys overwrite old ones."""
RATE_RANGE: Final = (1.0, 16.0)
"""Range of these rates, where steps have a bias: channels forget within a step, within hundreds, or in between."""
LONE_RATE_RANGE: Final = (0.001, 16.0)
"""The same where they have none: then steps are near one, and the rates alone say how long a channel remembers."""
LOGIT_DEVIATION: Final = 3.0
ABSORBED_HEAD_DIM: Final = 128
"""Elements of a DeepSeek query without its rotary part, before the projection is absorbed; no axis of mla says it."""


FEW_BOOLS: Final = 64
"""Of fewer all could become false, where what they mask then leaves nothing: they are moved along, and not flipped."""


def make_tensor(blank: Blank) -> torch.Tensor:
    """Make a random tensor input."""
    tensor: torch.Tensor = find_rule(TENSOR_RULES, blank).make(blank)
    return tensor


def find_way(blank: Blank) -> Way:
    """Return how an input differs from call to call."""
    way = find_rule(TENSOR_RULES, blank).way
    if way is not None:
        return way
    dtype = DTYPES[blank.dtype_name]
    if dtype.kind == "float":
        return "scaled" if dtype.bits > 8 else "rolled"
    return "rolled" if dtype.bits == 8 and dtype.kind != "bool" else "fixed"


def is_free(blank: Blank) -> bool:
    """Tell whether nothing says what an input's range is: floats that get normal values only because no rule fits."""
    dtype = DTYPES[blank.dtype_name]
    return dtype.kind == "float" and dtype.bits > 8 and find_rule(TENSOR_RULES, blank).make is _normal_or_exponents


def find_deviation(blank: Blank) -> float | None:
    """Return the standard deviation of an input of normal values around zero; None where an input is made otherwise."""
    deviation = DEVIATIONS.get(find_rule(TENSOR_RULES, blank).make)
    dtype = DTYPES[blank.dtype_name]
    return deviation(blank) if deviation is not None and dtype.kind == "float" and dtype.bits > 8 else None


def has_any_bools(blank: Blank) -> bool:
    """Tell whether an input holds bools to which no rule gives a meaning: random ones are no structure."""
    return find_rule(TENSOR_RULES, blank).make is _even


def find_flips(blank: Blank) -> int:
    """Return which bits of each byte of a random input may be flipped, and leave it as likely as it was.

    Where any byte or word may come, all of them; of many bools the one that they have; of 8-bit floats around zero the
    sign; of other inputs none.
    """
    make, dtype = find_rule(TENSOR_RULES, blank).make, DTYPES[blank.dtype_name]
    if make is _even:
        return 0x01 if math.prod(blank.shape) >= FEW_BOOLS else 0
    if make is integers.words or (make is integers.small_or_bytes and dtype.bits == 8):
        return 0xFF
    if dtype.kind != "float" or dtype.bits > 8 or make not in DEVIATIONS or blank.dtype_name == "float8_e8m0fnu":
        return 0
    return 0x80 if dtype.bits == 8 else 0xFF


def is_quantised(blank: Blank) -> bool:
    """Tell whether an input holds numbers of a narrow format whose bits mean no more than a number.

    These are floats of 4 and 8 bits and int8, where no rule gives them a range or takes them for indices, their name
    speaks of no scale or mask, and no constraint asks for their values.
    """
    make, dtype = find_rule(TENSOR_RULES, blank).make, DTYPES[blank.dtype_name]
    value = rf"\b{re.escape(blank.name)}\b(?!\.(shape|ndim)\b)"
    if any(re.search(value, text) for text in blank.definition.constraints):
        return False
    if blank.dtype_name == "int8":
        return make is integers.small_or_bytes and re.search(NO_NUMBERS, blank.name.lower()) is None
    is_narrow = dtype.kind == "float" and dtype.bits <= 8 and blank.dtype_name != "float8_e8m0fnu"
    return is_narrow and make in DEVIATIONS


def make_number(blank: Blank) -> bool | int | float:
    """Make a random input that is a single Python number."""
    if blank.name in blank.axes:
        return blank.axes[blank.name]
    number: bool | int | float = find_rule(NUMBER_RULES, blank).make(blank)
    return number


def _softmax_rows(blank: Blank) -> torch.Tensor:
    """Make rows of probabilities, from nearly flat to nearly certain, as those of language models are."""
    generator = blank.generator(blank.device)
    logits = torch.empty(blank.shape, dtype=torch.float32, device=blank.device).normal_(generator=generator)
    sharpness = torch.empty((*blank.shape[:-1], 1), dtype=torch.float32, device=blank.device)
    return blank.finish(logits.mul_(sharpness.uniform_(1.0, 5.0, generator=generator)).softmax(dim=-1))


def _unit_rows(blank: Blank) -> torch.Tensor:
    values = random_values.normal(blank)
    return blank.finish(torch.nn.functional.normalize(values.float(), dim=-1))


def _cos_sin(blank: Blank) -> torch.Tensor:
    """Make a cache of rotary embeddings: cosines in the first half of a row, sines in the second half."""
    half = blank.shape[-1] // 2
    frequency = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / max(half, 1))
    angle = torch.arange(blank.shape[0], dtype=torch.float64)[:, None] * frequency
    return blank.finish(torch.cat((angle.cos(), angle.sin()), dim=-1))


def _log_rates(blank: Blank) -> torch.Tensor:
    has_bias = any(name.lower() == STEP_BIAS for name in blank.definition.inputs)
    return random_values.uniform_logs(blank, *(RATE_RANGE if has_bias else LONE_RATE_RANGE))


def _log_decay(blank: Blank) -> torch.Tensor:
    return blank.finish(_log_rates(blank))


def _decay(blank: Blank) -> torch.Tensor:
    return blank.finish(_log_rates(blank).exp_().neg_())


def _step_bias(low: float, high: float) -> Callable[[Blank], torch.Tensor]:
    """Make biases whose softplus is a step: softplus(step + log(1 - exp(-step))) is the step."""

    def make(blank: Blank) -> torch.Tensor:
        steps = random_values.uniform_logs(blank, low, high).exp_()
        return blank.finish(steps + torch.log(-torch.expm1(-steps)))

    return make


def _fan_in(blank: Blank, weights: str) -> int:
    shape = blank.definition.inputs[weights].shape if weights in blank.definition.inputs else None
    axis = shape[-1] if shape else ""
    return blank.axes.get(axis) or (int(axis) if axis.isdigit() else 1)


def _weights_scale(blank: Blank) -> torch.Tensor:
    """Make scales of quantised weights with which a product with normal inputs has a size near 1."""
    stem = re.sub(r"_scales?$", "", blank.name)
    gemm = {"output1": "gemm1_weights", "output2": "gemm2_weights"}.get(blank.name[:7], stem)
    unit = math.sqrt(1 / max(_fan_in(blank, gemm), 1))
    return random_values.uniform(blank, SCALE_RANGE[0] * unit, SCALE_RANGE[1] * unit)


def _moe_deviation(blank: Blank) -> float:
    quantised = DTYPES[blank.dtype_name].bits <= 8
    return 1.0 if quantised else math.sqrt(1 / max(blank.shape[-1], 1))


def _moe_weights(blank: Blank) -> torch.Tensor:
    return random_values.normal(blank, _moe_deviation(blank))


def _logits(blank: Blank) -> torch.Tensor:
    return random_values.normal(blank, LOGIT_DEVIATION)


def _exponents(blank: Blank) -> torch.Tensor:
    return random_values.fill_bytes(blank, 125, 130)  # 2 ** -2 to 2 ** 2


def _scale(blank: Blank) -> torch.Tensor:
    return _exponents(blank) if blank.dtype_name == "float8_e8m0fnu" else random_values.uniform(blank, *SCALE_RANGE)


def _normal_or_exponents(blank: Blank) -> torch.Tensor:
    return _exponents(blank) if blank.dtype_name == "float8_e8m0fnu" else random_values.normal(blank)


def _even(blank: Blank) -> torch.Tensor:
    return blank.finish(torch.rand(blank.shape, generator=blank.generator()) < 0.5)


def _softmax_scale(blank: Blank) -> float:
    """Give 1 / sqrt(d), where d is the head dimension of queries and keys; for mla, d before absorption."""
    rope = blank.size("head_dim_kpe", "qk_rope_head_dim")
    absorbed = blank.size("head_dim_ckv") is not None and rope is not None
    dimension = (
        ABSORBED_HEAD_DIM + (rope or 0) if absorbed else blank.size("qk_dim", "head_dim_qk", "head_dim", "head_size")
    )
    return math.sqrt(1 / max(dimension or 128, 1))


def _number(low: float, high: float) -> Callable[[Blank], float]:
    """Make one random number, uniform in (low, high]."""
    return lambda blank: high - (high - low) * torch.rand((), dtype=torch.float64, generator=blank.generator()).item()


def _tensor(low: float, high: float) -> Callable[[Blank], torch.Tensor]:
    """Make random values, uniform in (low, high]."""
    return lambda blank: random_values.fill_floats(
        blank, lambda values, generator: values.uniform_(0.0, 1.0, generator=generator).mul_(low - high).add_(high)
    )


DEVIATIONS: Final[dict[Callable[[Blank], Any], Callable[[Blank], float]]] = {
    _normal_or_exponents: lambda _: 1.0,
    _logits: lambda _: LOGIT_DEVIATION,
    _moe_weights: _moe_deviation,
}
"""What makes normal values → their standard deviation."""
STEP_BIAS: Final = "dt_bias"
NO_NUMBERS: Final = r"scale|zero|mask|flag|sign|type|code|bits"
"""What a name of stored int8 says where its values are no quantised numbers."""
PROBABILITIES: Final = r"((draft|target)_)?prob(s|abilities)"

TENSOR_RULES: Final[tuple[Rule, ...]] = (
    *integers.INTEGER_RULES,
    # op types whose inputs have to fit each other
    Rule("sampling", "float", PROBABILITIES, _softmax_rows, "softmax rows of mixed sharpness", "redrawn"),
    Rule("sampling", "float", r".*logits", _logits, "normal, deviation 3"),
    Rule("gdn", "float", r"k", _unit_rows, "normal rows of unit length: longer keys make the state explode", "redrawn"),
    Rule(
        "gdn|mamba.*", "float", r"a_log", _log_decay, "logarithm of 1 to 16; without `dt_bias` 0.001 to 16", "redrawn"
    ),
    Rule("mamba.*", "float", r"a", _decay, "-16 to -1; without `dt_bias` -16 to -0.001; all magnitudes alike"),
    Rule("gdn", "float", STEP_BIAS, _step_bias(*DELTA_STEP_RANGE), "its softplus is 0.01 to 1", "redrawn"),
    Rule("mamba.*", "float", STEP_BIAS, _step_bias(*STEP_RANGE), "its softplus is 0.001 to 0.1", "redrawn"),
    Rule("moe", "float", r"gemm\d_weights|w\d+", _moe_weights, "normal; not quantised: divided by sqrt(fan-in)"),
    Rule("moe", "float", r".*weights_scales?|output\d_scales.*", _weights_scale, "0.5 to 1.5, divided by sqrt(fan-in)"),
    # names that mean the same everywhere
    Rule(ANY, "float", r"top_?ps?", _tensor(0.1, 1.0), "0.1 to 1", "rolled"),
    Rule(ANY, "float", r"min_?ps?", _tensor(0.01, 0.2), "0.01 to 0.2", "rolled"),
    Rule(ANY, "float", r"temperatures?", _tensor(0.5, 1.5), "0.5 to 1.5", "rolled"),
    Rule(ANY, "float", r"cos_sin_cache", _cos_sin, "cosines and sines of rotary angles", "fixed"),
    Rule(ANY, "float", r".*scale.*", _scale, "0.5 to 1.5; exponents: 2 ** -2 to 2 ** 2"),
    # by dtype
    Rule(ANY, "float", ANY, _normal_or_exponents, "normal; packed 4-bit: any code; exponents: 2 ** -2 to 2 ** 2"),
    Rule(ANY, "bool", ANY, _even, "even"),
)

NUMBER_RULES: Final[tuple[Rule, ...]] = (
    # Before these rules: an input with the name of an axis is the size of that axis.
    Rule(ANY, "float", r"(sm_|softmax_|attn_|attention_)?scal(e|ing)", _softmax_scale, "1 / sqrt(head dimension)"),
    Rule(ANY, "float", r".*(eps|epsilon)", lambda _: 1e-6, "1e-6"),
    Rule(ANY, "float", r"top_?p", _number(0.1, 1.0), "0.1 to 1"),
    Rule(ANY, "float", r"min_?p", _number(0.01, 0.2), "0.01 to 0.2"),
    Rule(ANY, "float", r".*theta", lambda _: 10_000.0, "10000"),
    Rule(ANY, "float", r".*soft_?cap", lambda _: 30.0, "30"),
    Rule(ANY, "float", ANY, _number(0.5, 1.5), "0.5 to 1.5"),
    Rule(ANY, "int uint", r"top_?k", lambda blank: int(integers.top_k(blank)), "1 to the vocabulary"),
    Rule(ANY, "int uint", r".*offset", lambda _: 0, "0"),
    Rule(ANY, "int uint", ANY, lambda _: 1, "1"),
    Rule(ANY, "bool", r".*causal", lambda _: True, "true"),
    Rule(ANY, "bool", ANY, lambda _: False, "false"),
)
