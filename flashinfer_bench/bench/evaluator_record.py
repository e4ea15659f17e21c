"""The records of this package's evaluators. The host reads them, and imports neither torch nor an evaluator.

A record has the module and class of an evaluator, the definitions that it takes, and the revision of its rules.
`registry` imports the class of each record. `KNOWN_KEYS` has the keys of `extra`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any, Final

from flashinfer_bench.bench.config_sources import ResolvedEvalConfig
from flashinfer_bench.data.definition import Definition, normalise_op_type
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.data.names import KEY_CUTOFF, nearest_name
from flashinfer_bench.data.reference import read_module

MAX_ABSOLUTE_ERROR: Final = "max_absolute_error"
"""Key of `extra`: limit on the absolute error of each element, whatever the other tolerances are."""
MAX_ERROR_CAP: Final = "max_error_cap"
"""Key of `extra`: limit on the absolute error of each element, in multiples of the largest expected value."""
MAX_ERROR_NORM: Final = "max_error_norm"
"""Key of `extra`: limit of the rules `norm`, `lost_rows` and `regimes`, as a share of the reference's norm."""
DSA_TOLERANCE: Final = "dsa_score_tolerance"
"""Key of `extra`: largest error of an indexer's score, as a share of its magnitude."""
SUMMED_TOLERANCE: Final = "summed_tolerance"
"""Key of `extra`: allow an error up to atol + rtol * |expected|, as torch.allclose does."""
MEASURE_REJECTED: Final = "measure_rejected"
"""Key of `extra`: also time a solution with wrong values. The solution's trace still has the status of wrong values,
and no performance."""
EXPONENT: Final = re.compile(r"[-+]?\d+[eE][-+]?\d+$")
SHOWN_CHARS: Final = 80
"""Characters of a wrong value that a message shows."""
WEIGHTS: Final = re.compile(r"prob(s|abilities)?|logits")
CHECK_OUTPUTS: Final = "check_outputs"
"""Function in a definition's reference that judges outputs."""
SPECULATIVE_TENSORS: Final = [
    *("draft_probs", "draft_token_ids", "target_probs"),
    *("output_token_ids", "accepted", "emitted"),
]
"""Names of inputs and outputs of chain speculative sampling."""


@dataclass(frozen=True)
class ExtraKey:
    """The values that a key of `extra` may have."""

    words: str
    holds: Callable[[Any], bool]


def is_number(value: Any) -> bool:
    """Return whether a value is a number within a float's range."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return is_whole or isinstance(value, float)


SHARE: Final = ExtraKey("a number from 0 to 1", lambda value: is_number(value) and 0 <= value <= 1)
POSITIVE: Final = ExtraKey("a number above 0", lambda value: is_number(value) and value > 0)
TRUTH: Final = ExtraKey("true or false", lambda value: isinstance(value, bool))
KNOWN_KEYS: Final = {
    MEASURE_REJECTED: TRUTH,
    SUMMED_TOLERANCE: TRUTH,
    MAX_ABSOLUTE_ERROR: POSITIVE,
    MAX_ERROR_CAP: POSITIVE,
    MAX_ERROR_NORM: POSITIVE,
    "sampling_validation_trials": ExtraKey(
        "a whole number, at least 1",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
    ),
    "sampling_tvd_threshold": SHARE,
    "sampling_false_alarm_rate": SHARE,
    "sampling_least_shift": ExtraKey(
        "a number from 0.001 to 0.5", lambda value: is_number(value) and 1e-3 <= value <= 0.5
    ),
    DSA_TOLERANCE: ExtraKey("a number from 0 to 1, 1 excluded", lambda value: is_number(value) and 0 <= value < 1),
}
"""Keys of `extra` that built-in evaluators and the engine read."""


@dataclass(frozen=True)
class EvaluatorRecord:
    """The declaration of one evaluator."""

    module: str
    """Its module below `bench.evaluators`."""
    revision: int
    """Increase this number when the evaluator's inputs, rules or figures change, even by a change of shared code."""
    op_types: tuple[str, ...] = ()
    """Op types that it may take; empty: it takes the definitions that no other evaluator takes."""
    takes: Callable[[Definition], bool] = lambda _definition: True
    """A condition that a definition of these op types must also meet."""

    def covers(self, definition: Definition) -> bool:
        """Return whether the evaluator takes a definition."""
        return not self.op_types or (normalise_op_type(definition.op_type) in self.op_types and self.takes(definition))


def find_weights(definition: Definition) -> str | None:
    """Return the name of the input with probabilities or logits; None if there is none, or more than one."""
    fitting = [
        name
        for name, spec in definition.inputs.items()
        if WEIGHTS.fullmatch(name.lower()) and DTYPES[spec.dtype].kind == "float" and len(spec.shape or ()) == 2
    ]
    return fitting[0] if len(fitting) == 1 else None


def has_low_bits(definition: Definition) -> bool:
    """Return whether a definition is low-bit by its op type, or has inputs of 8 bits or fewer."""
    dtypes = [DTYPES[spec.dtype] for spec in definition.inputs.values()]
    return definition.op_type == "lowbit" or any(dtype.bits <= 8 and dtype.kind != "bool" for dtype in dtypes)


def draws_tokens(definition: Definition) -> bool:
    """Return whether a definition returns one token for each row of probabilities or logits."""
    specs = list(definition.outputs.values())
    is_tokens = len(specs) == 1 and DTYPES[specs[0].dtype].kind == "int" and len(specs[0].shape or ()) == 1
    return is_tokens and find_weights(definition) is not None


def renormalises(definition: Definition) -> bool:
    """Return whether a definition keeps some probabilities of each row and rescales them."""
    weights, outputs = find_weights(definition), list(definition.outputs.values())
    if weights is None or "logits" in weights.lower() or len(outputs) != 1:
        return False
    is_filter = ("top_k" in definition.inputs) != ("top_p" in definition.inputs)
    is_float = DTYPES[outputs[0].dtype].kind == "float"
    return is_filter and is_float and outputs[0].shape == definition.inputs[weights].shape


RECORDS: Final = {
    "LowBitEvaluator": EvaluatorRecord("lowbit", 8, ("lowbit", "moe"), has_low_bits),
    "OwnCheckEvaluator": EvaluatorRecord(
        "own_check", 1, ("gpumode",), lambda definition: CHECK_OUTPUTS in read_module(definition.reference).names
    ),
    "SamplingEvaluator": EvaluatorRecord("sampling.evaluator", 6, ("sampling",), draws_tokens),
    "RenormalisedEvaluator": EvaluatorRecord("sampling.renormalised", 4, ("sampling",), renormalises),
    "SpeculativeEvaluator": EvaluatorRecord(
        "sampling.speculative",
        5,
        ("sampling",),
        lambda definition: [*definition.inputs, *definition.outputs] == SPECULATIVE_TENSORS,
    ),
    "DSAEvaluator": EvaluatorRecord("selection.dsa", 7, ("dsa_paged",)),
    "TopKEvaluator": EvaluatorRecord(
        "selection.top_k",
        3,
        ("top_k",),
        lambda definition: "scores" in definition.inputs and "indices" in definition.outputs,
    ),
    "DefaultEvaluator": EvaluatorRecord("default", 7),
}
"""Name of a class → its record. The first record that covers a definition decides which evaluator judges it."""


def known_op_types() -> list[str]:
    """Return the op types of built-in evaluators. op_type_config may name them, even if no set has them."""
    return sorted({op_type for record in RECORDS.values() for op_type in record.op_types})


def built_in_key(definition: Definition) -> str:
    """Return the fingerprint of the built-in evaluator that judges a definition."""
    return next(make_key(name, one.revision) for name, one in RECORDS.items() if one.covers(definition))


def make_key(name: str, revision: int) -> str:
    """Return the fingerprint of an evaluator's code."""
    return f"{name} {revision}"


def why_wrong(key: str, value: Any) -> str | None:
    """Return the valid values of a known key; None if the value is valid, or the key is unknown."""
    rule = KNOWN_KEYS.get(key)
    if rule is None or rule.holds(value):
        return None
    hint = " (YAML reads 1e-3 as text: write 1.0e-3)" if isinstance(value, str) and EXPONENT.match(value) else ""
    return f"extra.{key} is {repr(value)[:SHOWN_CHARS]}; it should be {rule.words}{hint}"


def find_misspelt_extras(configs: Iterable[ResolvedEvalConfig], declared: Container[str] = ()) -> list[str]:
    """Return a line for each unknown key that is nearly a known key, unless a plug-in declares it."""

    def check(key: str, _value: Any) -> str | None:
        is_known = key in KNOWN_KEYS or key in declared
        meant = None if is_known else nearest_name(key, KNOWN_KEYS, cutoff=KEY_CUTOFF)
        return meant and f"extra.{key} is no key of a built-in evaluator; did you mean {meant!r}?"

    return list_extras(configs, check)


def list_extras(configs: Iterable[ResolvedEvalConfig], check: Callable[[str, Any], str | None]) -> list[str]:
    """Return a line for each key of `extra` in which `check` finds a problem, with the origin of the value."""
    lines: dict[str, None] = {}
    for config in configs:
        for key, value in config.extra.items():
            if reason := check(key, value):
                lines[f"{config.origins.get(f'extra.{key}', 'the configuration')}: {reason}"] = None
    return list(lines)
