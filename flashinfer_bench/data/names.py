"""Finding the known name that a wrong name was probably meant to be, for messages. It never decides anything.

Names come from files and requests of strangers, so a search is bounded by `LONGEST`, `MOST_KNOWN` and `COMPARED`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from heapq import nlargest
from itertools import islice
from os.path import commonprefix
from typing import Final

NAME_CUTOFF: Final = 0.6
"""Least similarity (difflib ratio) at which a known name is offered for an unknown name."""
KEY_CUTOFF: Final = 0.8
"""The same for an unknown key. It is higher, since the key may be right."""
LONGEST: Final = 100
"""Longer names, in characters, are near to none."""
MOST_KNOWN: Final = 2000
"""Known names of a search."""
COMPARED: Final = 8
"""Known names of a search that are compared in full: one comparison may take 20 ms."""


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = NAME_CUTOFF) -> str | None:
    """Return the known name nearest to `name`, or None if none is near. Upper and lower case make no difference."""
    if len(name) > LONGEST:
        return None
    matcher = difflib.SequenceMatcher(b=name.lower())

    def bound(candidate: str) -> tuple[float, int]:
        matcher.set_seq1(candidate.lower())
        return matcher.quick_ratio(), len(commonprefix([candidate, name]))  # noqa: RUF071 - a name is no path

    def similarity(candidate: str) -> float:
        matcher.set_seq1(candidate.lower())
        return matcher.ratio()

    short = [candidate for candidate in islice(known, MOST_KNOWN) if len(candidate) <= LONGEST]
    likely = [candidate for candidate in nlargest(COMPARED, short, bound) if bound(candidate)[0] >= cutoff]
    best = max(likely, key=similarity, default=None)
    return best if best is not None and similarity(best) >= cutoff else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the end of a message, or an empty text."""
    nearest = nearest_name(name, known)
    return f"; did you mean {nearest!r}?" if nearest is not None else ""
