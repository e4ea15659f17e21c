"""Finds the values that a reference tests for. Patterns search the reference's source after strings and comments are
removed.

Stress cases (`stress.py`) use the result. For example, a guard against infinite numbers matters only if an input has an
infinite number.
"""

from __future__ import annotations

import ast
import math
import re
from functools import lru_cache
from typing import Final, NamedTuple

TEXTS: Final = re.compile(r"""\"\"\"[\s\S]*?\"\"\"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
VALUE: Final = (
    r"-?(?<![\w.\])])([A-Za-z_]\w*)"
    r"(?:\[[^\[\]]*\]|\.(?:float|double|to|unsqueeze|view|reshape|transpose|squeeze|flip)\([^()]*\))*"
)
"""Matches a name, also with an index or a change of dtype or layout. The pattern's group is the name."""
NANS: Final = "isfinite|isnan|nan_to_num_?|nansum|nanmean"
"""Functions that test for NaN. `nan_to_num` is not in INFINITE, because it makes infinite numbers so large that they
dominate a norm."""
INFINITE: Final = "isfinite|isinf|isposinf|isneginf"
SIGMOIDS: Final = "sigmoid_?|logsigmoid|softplus|hardsigmoid|expit"
"""Functions that make a gate, which scales a carried value. exp(-exp(x)) makes a gate, too; DECAYS matches it."""
DECAYS: Final = rf"\bexp\(-(?:\w+\.)*exp\({VALUE}|\(-{VALUE}\.exp\(\)"
ZEROS: Final = rf"\b(?:count_nonzero|nonzero|heaviside)\b|{VALUE} [!=]= 0(?:\.0)?(?![\w.])|\.(?:eq|ne)\(0(?:\.0)?\)"
"""Functions and comparisons that separate a zero from a small number. Comparisons of shapes and sizes do not match."""
EMPTY: Final = r"\b(?:any|all|isnan|nan_to_num)\b"
"""Functions that define the result of rows without a true element."""
SCANS: Final = r"\b(?:cumsum|cumprod|logcumsumexp|associative_scan)_?\b"
"""Functions in which an element changes all later results."""
LOOP: Final = re.compile(r"^( *)(?:for|while) .*:\n((?:\1 +.*\n)+)", re.MULTILINE)
MIXES: Final = r"(?:lerp|mul|addcmul|where)\("
CARRIED: Final = re.compile(
    rf"^ *(\w+) (?:\*= |= (?:.*\W)?(?:\1\b\S* \* |\1\b\S*\.{MIXES}|{MIXES}.*\b\1\b)|= .* \* \1\b)", re.MULTILINE
)
"""Matches a statement that multiplies or mixes a variable, and assigns the result to the same variable. A sum over
heads does not match."""


class SourceChecks(NamedTuple):
    """The values that a source tests for."""

    not_finite: tuple[float, ...] = ()
    """NaN and infinities, if the source tests for them."""
    guarded: frozenset[str] = frozenset()
    """Names whose values the source checks for NaN or infinities."""
    zeros: bool = False
    """Whether the source separates zeros from other numbers."""
    empty_rows: bool = False
    """Whether the source defines the result of rows without a true element."""
    gates: frozenset[str] = frozenset()
    """Names that a sigmoid or softplus is applied to, if a state is carried from step to step."""


@lru_cache(maxsize=256)
def find_source_checks(source: str) -> SourceChecks:
    """Return the values that a source tests for; no values if the source cannot be parsed."""
    try:
        text = TEXTS.sub("''", ast.unparse(ast.parse(source))) + "\n"
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return SourceChecks()
    has = [bool(re.search(rf"\b(?:{names})\b", text)) for names in (NANS, INFINITE)]
    is_carried = re.search(SCANS, text) or any(CARRIED.search(body) for _, body in LOOP.findall(text))
    return SourceChecks(
        (math.nan,) * has[0] + (math.inf, -math.inf) * has[1],
        _subjects(f"{NANS}|{INFINITE}", text),
        re.search(ZEROS, text) is not None,
        re.search(EMPTY, text) is not None,
        _subjects(SIGMOIDS, text) | _names(DECAYS, text) if is_carried else frozenset(),
    )


def _subjects(functions: str, text: str) -> frozenset[str]:
    """Return the names that functions are applied to: `f(x)`, `x.f()`, `f(-x[t].float() + bias)`."""
    called = rf"\b(?:{functions})\({VALUE}(?=[,)]| [+-] )"
    method = rf"{VALUE}(?: [+-] [^()]*\))?\.(?:{functions})\("
    return _names(called, text) | _names(method, text)


def _names(pattern: str, text: str) -> frozenset[str]:
    return frozenset(name for result in re.finditer(pattern, text) for name in result.groups() if name)
