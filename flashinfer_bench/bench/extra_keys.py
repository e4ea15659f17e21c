"""The keys of the eval config's `extra` that built-in evaluators and the engine read: what their values may be.

`extra` is open: evaluators from outside have keys of their own. The plan refuses a wrong value of a key that is known
here, before anything runs. A key that is nearly one of these causes a warning.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from flashinfer_bench.bench.config_sources import ResolvedEvalConfig
from flashinfer_bench.data.names import KEY_CUTOFF, nearest_name

TRIALS: Final = "sampling_validation_trials"
TVD_THRESHOLD: Final = "sampling_tvd_threshold"
FALSE_ALARM_RATE: Final = "sampling_false_alarm_rate"
MAX_ERROR_CAP: Final = "max_error_cap"
MAX_ABSOLUTE_ERROR: Final = "max_absolute_error"
"""Largest error of any element, whatever the other tolerances allow."""
SUMMED_TOLERANCE: Final = "summed_tolerance"
"""Let an element's error be as large as atol and rtol times the expected value together, as torch.allclose does."""
MAX_ERROR_NORM: Final = "max_error_norm"
"""Limit of the rules `norm`, `lost_rows` and `regimes`, as a share of the reference's norm."""
LEAST_SHIFT: Final = "sampling_least_shift"
"""Mass that a sampler may not leave out unseen: the rule `power` calls it so often that it would show."""
DSA_TOLERANCE: Final = "dsa_score_tolerance"
MEASURE_REJECTED: Final = "measure_rejected"
"""Time a solution whose values are wrong, too. Its trace keeps its status and has no performance."""

EXPONENT: Final = re.compile(r"[-+]?\d+[eE][-+]?\d+$")
SHOWN_CHARS: Final = 80
"""Characters of a wrong value that a message shows."""


@dataclass(frozen=True)
class ExtraKeyRule:
    """What a value has to be."""

    words: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return is_whole or isinstance(value, float)


_SHARE: Final = ExtraKeyRule("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
_TRUTH: Final = ExtraKeyRule("true or false", lambda value: isinstance(value, bool))
RULES: Final[dict[str, ExtraKeyRule]] = {
    TRIALS: ExtraKeyRule(
        "a whole number, at least 1",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
    ),
    TVD_THRESHOLD: _SHARE,
    FALSE_ALARM_RATE: _SHARE,
    MAX_ERROR_CAP: ExtraKeyRule(
        "a number above 0, in multiples of the largest value",
        lambda value: _is_number(value) and value > 0,
    ),
    MAX_ABSOLUTE_ERROR: ExtraKeyRule("a number above 0", lambda value: _is_number(value) and value > 0),
    MAX_ERROR_NORM: ExtraKeyRule("a number above 0", lambda value: _is_number(value) and value > 0),
    LEAST_SHIFT: ExtraKeyRule("a number from 0.001 to 0.5", lambda value: _is_number(value) and 1e-3 <= value <= 0.5),
    DSA_TOLERANCE: ExtraKeyRule("a number from 0 to 1, 1 excluded", lambda value: _is_number(value) and 0 <= value < 1),
    MEASURE_REJECTED: _TRUTH,
    SUMMED_TOLERANCE: _TRUTH,
}


def why_wrong(key: str, value: Any) -> str | None:
    """Say what a known key's value should be; None where it is that, or the key is not known."""
    rule = RULES.get(key)
    if rule is None or rule.holds(value):
        return None
    hint = " (YAML reads 1e-3 as text: write 1.0e-3)" if isinstance(value, str) and EXPONENT.match(value) else ""
    return f"extra.{key} is {repr(value)[:SHOWN_CHARS]}; it should be {rule.words}{hint}"


def find_wrong_extras(configs: Iterable[ResolvedEvalConfig]) -> list[str]:
    """Return a line for each wrong value, with the place that gave it."""
    return _lines(configs, lambda extra: (reason for key, value in extra.items() if (reason := why_wrong(key, value))))


def find_misspelt_extras(configs: Iterable[ResolvedEvalConfig], declared: Container[str] = ()) -> list[str]:
    """Return a line for each key that is unknown here and nearly a known one, unless a plug-in declares it."""
    return _lines(configs, partial(_misspelt, declared))


def _misspelt(declared: Container[str], extra: Mapping[str, Any]) -> Iterator[str]:
    for key in extra:
        is_known = key in RULES or key in declared
        meant = nearest_name(key, RULES, cutoff=KEY_CUTOFF) if not is_known else None
        if meant is not None:
            yield f"extra.{key} is no key of a built-in evaluator; did you mean {meant!r}?"


def _lines(configs: Iterable[ResolvedEvalConfig], look: Callable[[Mapping[str, Any]], Iterable[str]]) -> list[str]:
    lines: dict[str, None] = {}
    for config in configs:
        for reason in look(config.extra):
            lines[f"{config.origins.get(reason.partition(' ')[0], 'the configuration')}: {reason}"] = None
    return list(lines)
