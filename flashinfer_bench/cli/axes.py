"""Reads sizes of axes from a command line: `--axis rows=1:4096:x2`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod
from typing import Final

from flashinfer_bench.errors import UsageError

AXIS_HELP: Final = "sizes of an axis: rows=64, rows=1,7,64 or rows=1:4096:x2; may be repeated"
RANGE: Final = re.compile(r"(\d+):(\d+)(?::(x?)(\d+))?")
SIZES: Final = re.compile(r"\d+(?:,\d+)*")
MOST_CASES: Final = 10_000
"""Maximum number of combinations of sizes. A number above this limit is most likely a typing error."""


def read_range(flag: str, text: str) -> Sequence[int] | None:
    """Return the numbers of FIRST:LAST:STEP or FIRST:LAST:xFACTOR; None for any other text.

    Raises:
        UsageError: LAST is below FIRST, STEP is 0, or FACTOR cannot increase FIRST.
    """
    found = RANGE.fullmatch(text)
    if found is None:
        return None
    first, last, step = int(found[1]), int(found[2]), int(found[4] or 1)
    if last < first or step < 1 or (found[3] and (step < 2 or not first)):
        raise UsageError(f"{flag} {text}: write FIRST:LAST:STEP or FIRST:LAST:xFACTOR, upward")
    if found[3]:
        return [first * step**power for power in range(last.bit_length()) if first * step**power <= last]
    return range(first, last + 1, step)


def read_sizes(given: Iterable[str]) -> dict[str, Sequence[int]]:
    """Return axis → sizes, from the values of `--axis`.

    Raises:
        UsageError: a value has a wrong syntax, or there are too many combinations.
    """
    sizes: dict[str, Sequence[int]] = {}
    for text in given:
        name, _, values = text.partition("=")
        found = read_range("--axis", values)
        if found is None and SIZES.fullmatch(values):
            found = [int(value) for value in dict.fromkeys(values.split(","))]
        if not name or found is None or name in sizes:
            raise UsageError(f"--axis {text}: write each axis once: NAME=64, NAME=1,7,64 or NAME=1:4096:x2")
        sizes[name] = found
    if (cases := prod(map(len, sizes.values()))) > MOST_CASES:
        raise UsageError(f"--axis: the sizes give {cases:,} workloads; at most {MOST_CASES:,} are made at once")
    return sizes
