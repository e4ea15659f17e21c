"""Finds the known name nearest to a wrong name, for messages. The result decides nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Final

NAME_CUTOFF: Final = 0.6
"""Minimum similarity (difflib ratio) for a known name to be suggested instead of an unknown name."""
KEY_CUTOFF: Final = 0.8
"""Minimum similarity for a known key to be suggested instead of an unknown key. It is higher than `NAME_CUTOFF`, since
users may add keys on purpose."""
LONGEST: Final = 100
"""Longest name, in characters, that is compared. Names come from files and untrusted requests."""
MOST_KNOWN: Final = 2000
"""Largest number of known names that are compared."""


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = NAME_CUTOFF) -> str | None:
    """Return the known name nearest to `name`, or None. Upper and lower case make no difference."""
    if len(name) > LONGEST:
        return None
    names = {one.lower(): one for one in islice(known, MOST_KNOWN) if len(one) <= LONGEST}
    found = get_close_matches(name.lower(), names, 1, cutoff)
    return names[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the end of a message, or an empty text."""
    nearest = nearest_name(name, known)
    return f"; did you mean {nearest!r}?" if nearest is not None else ""
