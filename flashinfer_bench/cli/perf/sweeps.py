"""Several cases from the flags of one: `--m 1,16,256`, or `--sweep m=1:4096:x2`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
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
    flags = [*CASE_FLAGS, *(flag for routine in ROUTINES.values() for flag in routine.flags)]
    numbers = {f"--{flag.name}" for flag in flags if flag.kind in ("int", "float")}
    fixed: list[str] = []
    varied: dict[str, list[str]] = {}
    waiting = list(words)
    while waiting:
        flag, has_value, value = (given := waiting.pop(0)).partition("=")
        if not (has_value or (flag in numbers | {SWEEP} and waiting)):
            fixed.append(given)
            continue
        value = value if has_value else waiting.pop(0)
        if flag == SWEEP:
            name, _, text = value.partition("=")
            if f"--{name}" not in numbers or not text:
                hint = did_you_mean(name, [one.removeprefix("--") for one in numbers - {f"--{name}"}])
                usual = "; write FLAG=1,16,256 or FLAG=1:4096:x2 of a flag that takes a number"
                raise Misuse(f"{SWEEP} {value}{hint if text and hint else usual}")
            varied[f"--{name}"] = _read_values(text)
        elif flag in numbers and LIST.fullmatch(value):
            varied[flag] = value.split(",")
        else:
            fixed += [given] if has_value else [flag, value]
    count = math.prod(map(len, varied.values()))
    if count > MOST_CASES:
        raise Misuse(f"the sweeps give {count:,} cases; at most {MOST_CASES:,} are run at once")
    return [
        [*fixed, *(word for pair in zip(varied, chosen, strict=True) for word in pair)]
        for chosen in product(*varied.values())
    ]


def describe_swept(cases: Sequence[Sequence[str]]) -> list[str]:
    """Return for each case the flags that tell it from the others: nothing for a single one."""
    varied = [at for at, words in enumerate(zip(*cases, strict=True)) if len(set(words)) > 1]
    return [" ".join(f"{case[at - 1]} {case[at]}" for at in varied) for case in cases]


def _read_values(text: str) -> list[str]:
    found = RANGE.fullmatch(text)
    if found is None:
        return text.split(",")
    first, last, by_factor, step = int(found[1]), int(found[2]), found[3] == "x", int(found[4] or 1)
    if step < (2 if by_factor else 1) or last < first or (by_factor and not first):
        raise Misuse(f"{SWEEP} {text}: write FIRST:LAST:STEP or FIRST:LAST:xFACTOR, upward")
    values: list[str] = []
    while first <= last and len(values) <= MOST_CASES:
        values.append(str(first))
        first = first * step if by_factor else first + step
    return values
