"""The built-in evaluators without their code: which definitions each takes, and the revision of its rules.

The host imports no torch, so it reads both here, for the fingerprints of jobs. The classes of the evaluators use the
same objects; `registry` lists the classes in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flashinfer_bench.data import Definition
from flashinfer_bench.data.definition import normalise_op_type
from flashinfer_bench.data.dtypes import DTYPES

_WEIGHTS: Final = re.compile(r"prob(s|abilities)?|logits")
SPECULATIVE_INPUTS: Final = ("draft_probs", "draft_token_ids", "target_probs")
SPECULATIVE_OUTPUTS: Final = ("output_token_ids", "accepted", "emitted")


@dataclass(frozen=True)
class BuiltIn:
    """What is known of one evaluator without importing its class."""

    name: str
    """Name of the class."""
    revision: int
    """Increase it when inputs, rules or numbers change for the definitions that it takes, also by shared code."""
    takes: Callable[[Definition], bool]


def find_weights(definition: Definition) -> str | None:
    """Give the name of the input with probabilities or logits; None where there is none, or more than one."""
    fitting = [
        name
        for name, spec in definition.inputs.items()
        if _WEIGHTS.fullmatch(name.lower()) and DTYPES[spec.dtype].kind == "float" and len(spec.shape or ()) == 2
    ]
    return fitting[0] if len(fitting) == 1 else None


def takes_sampling(definition: Definition) -> bool:
    """Take samplers: definitions of op type sampling that give one token for each row."""
    specs = list(definition.outputs.values())
    draws_tokens = len(specs) == 1 and DTYPES[specs[0].dtype].kind == "int" and len(specs[0].shape or ()) == 1
    return definition.op_type == "sampling" and draws_tokens and find_weights(definition) is not None


def takes_lowbit(definition: Definition) -> bool:
    """Take low-bit definitions and quantised moe."""
    if definition.op_type == "lowbit":
        return True
    dtypes = [DTYPES[spec.dtype] for spec in definition.inputs.values()]
    return definition.op_type == "moe" and any(dtype.bits <= 8 and dtype.kind != "bool" for dtype in dtypes)


def takes_dsa(definition: Definition) -> bool:
    """Take sparse attention and its indexer."""
    return normalise_op_type(definition.op_type) == "dsa_paged"


def takes_top_k(definition: Definition) -> bool:
    """Take top-k selections."""
    return definition.op_type == "top_k" and "scores" in definition.inputs and "indices" in definition.outputs


def takes_speculative(definition: Definition) -> bool:
    """Take chain speculative sampling."""
    return (
        definition.op_type == "sampling"
        and tuple(definition.inputs) == SPECULATIVE_INPUTS
        and tuple(definition.outputs) == SPECULATIVE_OUTPUTS
    )


def takes_renormalised(definition: Definition) -> bool:
    """Take filters that keep some probabilities of each row and rescale them."""
    weights, outputs = find_weights(definition), list(definition.outputs.values())
    if definition.op_type != "sampling" or weights is None or "logits" in weights.lower() or len(outputs) != 1:
        return False
    is_filter = ("top_k" in definition.inputs) != ("top_p" in definition.inputs)
    is_float = DTYPES[outputs[0].dtype].kind == "float"
    return is_filter and is_float and outputs[0].shape == definition.inputs[weights].shape


def takes_all(definition: Definition) -> bool:
    """Take any definition."""
    del definition
    return True


SAMPLING: Final = BuiltIn("SamplingEvaluator", 2, takes_sampling)
LOWBIT: Final = BuiltIn("LowBitEvaluator", 5, takes_lowbit)
DSA: Final = BuiltIn("DSAEvaluator", 4, takes_dsa)
TOP_K: Final = BuiltIn("TopKEvaluator", 1, takes_top_k)
RENORMALISED: Final = BuiltIn("RenormalisedEvaluator", 1, takes_renormalised)
SPECULATIVE: Final = BuiltIn("SpeculativeEvaluator", 2, takes_speculative)
DEFAULT: Final = BuiltIn("DefaultEvaluator", 4, takes_all)

IN_ORDER: Final = (SAMPLING, LOWBIT, DSA, TOP_K, RENORMALISED, SPECULATIVE, DEFAULT)
"""The first of these that takes a definition judges it."""


def mark_built_in(definition: Definition, known: tuple[BuiltIn, ...] = IN_ORDER) -> str:
    """Return what a fingerprint says of the built-in evaluator that judges a definition."""
    return next(make_mark(item.name, item.revision) for item in known if item.takes(definition))


def make_mark(name: str, revision: int) -> str:
    """Return what a fingerprint says of an evaluator's code."""
    return f"{name} {revision}"
