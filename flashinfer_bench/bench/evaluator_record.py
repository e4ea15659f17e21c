"""The declarations of this package's evaluators, read without running their files, since the host imports no torch.

An evaluator is one class in one file below `bench/evaluators/`. Its `record` has the definitions that it takes, the
keys of `extra` that it reads, and the revision of its rules:

    class ParityEvaluator(DefaultEvaluator):
        record = EvaluatorRecord(revision=1, op_types=("parity",), extra_keys={"parity_share": SHARE})

`find_records` parses the files, and evaluates only the expression of each `record`, with the functions, constants and
imports of its file. The names in the expression must work without torch. `registry` imports the class of each record,
in the order of the records.
"""

from __future__ import annotations
import __future__

import ast
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench.config_sources import ResolvedEvalConfig
from flashinfer_bench.data.definition import Definition, normalise_op_type
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.data.names import KEY_CUTOFF, nearest_name

FOLDER: Final = Path(__file__).with_name("evaluators")
MAX_ABSOLUTE_ERROR: Final = "max_absolute_error"
"""Key of `extra`: limit on the absolute error of each element, whatever the other tolerances are."""
MAX_ERROR_CAP: Final = "max_error_cap"
"""Key of `extra`: limit on the absolute error of each element, in multiples of the largest expected value."""
MAX_ERROR_NORM: Final = "max_error_norm"
"""Key of `extra`: limit of the rules `norm`, `lost_rows` and `regimes`, as a share of the reference's norm."""
SUMMED_TOLERANCE: Final = "summed_tolerance"
"""Key of `extra`: allow an error up to atol + rtol * |expected|, as torch.allclose does."""
MEASURE_REJECTED: Final = "measure_rejected"
"""Key of `extra`: also time a solution with wrong values. The solution's trace still has the status of wrong values,
and no performance."""
EXPONENT: Final = re.compile(r"[-+]?\d+[eE][-+]?\d+$")
SHOWN_CHARS: Final = 80
"""Characters of a wrong value that a message shows."""
WEIGHTS: Final = re.compile(r"prob(s|abilities)?|logits")


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
COUNT: Final = ExtraKey(
    "a whole number, at least 1", lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1
)


@dataclass(frozen=True)
class EvaluatorRecord:
    """The declaration of one evaluator."""

    revision: int
    """Increase this number when the evaluator's inputs, rules or figures change, even by a change of shared code."""
    op_types: tuple[str, ...] = ()
    """Op types that it may take; empty: it takes the definitions that no other evaluator takes."""
    takes: Callable[[Definition], bool] = lambda _definition: True
    """A condition that a definition of these op types must also meet."""
    extra_keys: Mapping[str, ExtraKey] = field(default_factory=dict)
    """Keys of `extra` that it reads, except keys that other evaluators declare."""
    module: str = ""
    """Module below `bench.evaluators`; `find_records` fills it in."""
    name: str = ""
    """Name of the class; `find_records` fills it in, too."""

    def covers(self, definition: Definition) -> bool:
        """Return whether the evaluator takes a definition."""
        return not self.op_types or (normalise_op_type(definition.op_type) in self.op_types and self.takes(definition))


@cache
def find_records() -> tuple[EvaluatorRecord, ...]:
    """Return the records of this package's evaluators. The first record that covers a definition decides which
    evaluator judges the definition."""
    result = [record for file in sorted(FOLDER.rglob("*.py")) for record in _read_records(file)]
    return tuple(sorted(result, key=lambda record: not record.op_types))


class _LightNames(dict[str, Any]):
    """The names of a file, each defined at its first use. Unused names are never defined, since they may need torch."""

    def __init__(self, file: Path, top: Iterable[ast.stmt]) -> None:
        self._file = str(file)
        self._homes = {name: node for node in top for name in _defined_by(node)}

    def __missing__(self, name: str) -> Any:
        self.define(self._homes[name])
        return self[name]

    def define(self, node: ast.stmt) -> None:
        flags = __future__.annotations.compiler_flag
        exec(compile(ast.Module([node], []), self._file, "exec", flags, dont_inherit=True), self)


def _read_records(file: Path) -> Iterator[EvaluatorRecord]:
    text = file.read_text(encoding="utf-8")
    if f"record = {EvaluatorRecord.__name__}(" not in text:
        return
    top = ast.parse(text).body
    names, module = _LightNames(file, top), ".".join(file.relative_to(FOLDER).with_suffix("").parts)
    for kind in (node for node in top if isinstance(node, ast.ClassDef)):
        for node in kind.body:
            if "record" in _defined_by(node):
                names.define(node)
                yield replace(names.pop("record"), module=module, name=kind.name)


def _defined_by(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name for alias in node.names]
    result = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
    return [str(getattr(one, "id", None) or getattr(one, "name", "")) for one in result]


def known_op_types() -> list[str]:
    """Return the op types of built-in evaluators. op_type_config may name them, even if no set has them."""
    return sorted({op_type for record in find_records() for op_type in record.op_types})


def built_in_key(definition: Definition) -> str:
    """Return the fingerprint of the built-in evaluator that judges a definition."""
    return next(make_key(one.name, one.revision) for one in find_records() if one.covers(definition))


def make_key(name: str, revision: int) -> str:
    """Return the fingerprint of an evaluator's code."""
    return f"{name} {revision}"


def find_weights(definition: Definition) -> str | None:
    """Return the name of the input with probabilities or logits; None if there is none, or more than one."""
    fitting = [
        name
        for name, spec in definition.inputs.items()
        if WEIGHTS.fullmatch(name.lower()) and DTYPES[spec.dtype].kind == "float" and len(spec.shape or ()) == 2
    ]
    return fitting[0] if len(fitting) == 1 else None


def known_keys() -> dict[str, ExtraKey]:
    """Return the keys of `extra` that built-in evaluators and the engine read."""
    declared = {key: rule for record in find_records() for key, rule in record.extra_keys.items()}
    return {MEASURE_REJECTED: TRUTH, **declared}


def why_wrong(key: str, value: Any) -> str | None:
    """Return the valid values of a known key; None if the value is valid, or the key is unknown."""
    rule = known_keys().get(key)
    if rule is None or rule.holds(value):
        return None
    hint = " (YAML reads 1e-3 as text: write 1.0e-3)" if isinstance(value, str) and EXPONENT.match(value) else ""
    return f"extra.{key} is {repr(value)[:SHOWN_CHARS]}; it should be {rule.words}{hint}"


def find_wrong_extras(configs: Iterable[ResolvedEvalConfig]) -> list[str]:
    """Return a line for each wrong value of a known key, with its source."""
    return _lines(configs, why_wrong)


def find_misspelt_extras(configs: Iterable[ResolvedEvalConfig], declared: Container[str] = ()) -> list[str]:
    """Return a line for each unknown key that is nearly a known key, unless a plug-in declares it."""
    known = known_keys()

    def check(key: str, _value: Any) -> str | None:
        meant = None if key in known or key in declared else nearest_name(key, known, cutoff=KEY_CUTOFF)
        return meant and f"extra.{key} is no key of a built-in evaluator; did you mean {meant!r}?"

    return _lines(configs, check)


def _lines(configs: Iterable[ResolvedEvalConfig], check: Callable[[str, Any], str | None]) -> list[str]:
    lines: dict[str, None] = {}
    for config in configs:
        for key, value in config.extra.items():
            if reason := check(key, value):
                lines[f"{config.origins.get(f'extra.{key}', 'the configuration')}: {reason}"] = None
    return list(lines)
