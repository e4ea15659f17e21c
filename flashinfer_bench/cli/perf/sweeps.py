"""Several cases from the flags of one: `--m 1,16,256`, or `--sweep m=1:4096:x2`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

from flashinfer_bench.cli.perf.flags import CASE_FLAGS
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.errors import Misuse
from flashinfer_bench.routines.table import ROUTINES

SWEEP: Final = "--sweep"
LIST: Final = re.compile(r"[-+.\w]+(?:,[-+.\w]+)+")
RANGE: Final = re.compile(r"(\d+):(\d+)(?::(x?)(\d+))?")
MOST_CASES: Final = 10_000
"""More cases than this are refused: a number was mistyped."""


def expand_sweeps(words: Sequence[str]) -> list[list[str]]:
    """Return the arguments of each case: every combination of the lists and sweeps among the words.

    Raises:
        Misuse: a sweep cannot be read, is not of a number, or gives too many cases.
    """
    fixed: list[str] = []
    varied: dict[str, list[str]] = {}
    numbers = {
        f"--{flag.name}"
        for flags in (CASE_FLAGS, *(routine.flags for routine in ROUTINES.values()))
        for flag in flags
        if flag.kind in ("int", "float")
    }
    for flag, value, given in _pairs(words):
        if flag == SWEEP:
            name, _, text = (value or "").partition("=")
            if f"--{name}" not in numbers or not text:
                hint = did_you_mean(name, [one.removeprefix("--") for one in numbers - {f"--{name}"}])
                usual = "; write FLAG=1,16,256 or FLAG=1:4096:x2 of a flag that takes a number"
                raise Misuse(f"{SWEEP} {value}{hint if text and hint else usual}")
            varied[f"--{name}"] = _read_values(text)
        elif flag in numbers and value is not None and LIST.fullmatch(value):
            varied[flag] = value.split(",")
        else:
            fixed += given
    count = 1
    for values in varied.values():
        count *= len(values)
    if count > MOST_CASES:
        raise Misuse(f"the sweeps give {count:,} cases; at most {MOST_CASES:,} are run at once")
    return [
        [*fixed, *(word for flag, value in zip(varied, chosen, strict=True) for word in (flag, value))]
        for chosen in product(*varied.values())
    ]


def describe_swept(cases: Sequence[Sequence[str]]) -> list[str]:
    """Return for each case the flags that tell it from the others: nothing for a single one."""
    varied = [at for at, words in enumerate(zip(*cases, strict=True)) if len(set(words)) > 1]
    return [" ".join(f"{case[at - 1]} {case[at]}" for at in varied) for case in cases]


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str | None, list[str]]]:
    """Yield each flag with its first value and all of its words; a word before any flag stands alone."""
    at = 0
    while at < len(words):
        end = at + 1
        while words[at].startswith("--") and end < len(words) and not words[end].startswith("--"):
            end += 1
        flag, has_value, value = words[at].partition("=")
        first = value if has_value else words[at + 1] if end > at + 1 else None
        yield flag, first, list(words[at:end])
        at = end


def _read_values(text: str) -> list[str]:
    found = RANGE.fullmatch(text)
    if found is None:
        return text.split(",")
    first, last, by_factor, step_text = int(found[1]), int(found[2]), found[3] == "x", found[4] or "1"
    step = int(step_text)
    if step < (2 if by_factor else 1) or last < first or (by_factor and not first):
        raise Misuse(f"{SWEEP} {text}: write FIRST:LAST:STEP or FIRST:LAST:xFACTOR, upward")
    values: list[str] = []
    while first <= last and len(values) <= MOST_CASES:
        values.append(str(first))
        first = first * step if by_factor else first + step
    return values
