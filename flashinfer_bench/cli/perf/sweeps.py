"""Several cases from the flags of one: `--m 1,16,256`, or `--sweep m=1:4096:x2`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import product
from typing import Any, Final

from flashinfer_bench.cli.perf.flags import CASE_FLAGS
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.errors import Misuse
from flashinfer_bench.routines.table import ROUTINES

SWEEP: Final = "--sweep"
LIST: Final = re.compile(r"[-+.\w]+(?:,[-+.\w]+)+")
RANGE: Final = re.compile(r"(\d+):(\d+)(?::(x?)(\d+))?")
MOST_CASES: Final = 10_000
"""More cases than this are refused: a number was mistyped."""


def expand_sweeps(words: Sequence[str]) -> list[tuple[list[str], str]]:
    """Return every combination of the lists and sweeps among the words.

    Returns:
        The arguments of each case, and the flags that tell it from the others.

    Raises:
        Misuse: a sweep cannot be read, is not of a number, or gives too many cases.
    """
    flags = [*CASE_FLAGS, *(flag for routine in ROUTINES.values() for flag in routine.flags)]
    numbers = {f"--{flag.name}" for flag in flags if flag.kind in ("int", "float")}
    fixed: list[str] = []
    varied: dict[str, Sequence[Any]] = {}
    waiting = list(words)
    while waiting:
        flag, is_joined, value = (given := waiting.pop(0)).partition("=")
        if not is_joined and waiting and flag in numbers | {SWEEP}:
            value = waiting.pop(0)
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
            fixed += [given] if is_joined or not value else [flag, value]
    count = math.prod(map(len, varied.values()))
    if count > MOST_CASES:
        raise Misuse(f"the sweeps give {count:,} cases; at most {MOST_CASES:,} are run at once")
    cases = []
    for values in product(*varied.values()):
        chosen = [(flag, str(value)) for flag, value in zip(varied, values, strict=True)]
        told = " ".join(f"{flag} {value}" for flag, value in chosen if len(varied[flag]) > 1)
        cases.append(([*fixed, *(word for pair in chosen for word in pair)], told))
    return cases


def _read_values(text: str) -> Sequence[Any]:
    found = RANGE.fullmatch(text)
    if found is None:
        return text.split(",")
    first, last, factor, step = int(found[1]), int(found[2]), found[3], int(found[4] or 1)
    if step < (2 if factor else 1) or last < first or (factor and not first):
        raise Misuse(f"{SWEEP} {text}: write FIRST:LAST:STEP or FIRST:LAST:xFACTOR, upward")
    if not factor:
        return range(first, last + 1, step)
    values = [first]
    while values[-1] * step <= last:
        values.append(values[-1] * step)
    return values
