"""Finding the known name that a wrong one was probably meant to be, for messages. It never decides anything."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice
from typing import Final

NAME_CUTOFF: Final = 0.6
"""Offer a known name to somebody who asked for an unknown one at this similarity (difflib ratio) or more."""
KEY_CUTOFF: Final = 0.8
"""Warn of an unknown key at this similarity to a known one or more. It is higher, since the key may be right."""

LONGEST: Final = 300
"""Longer names, in characters, are near to none: comparing two texts takes the square of their length."""
MOST_KNOWN: Final = 2000
"""Look at this many known names, for which the search takes a tenth of a second."""


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = NAME_CUTOFF) -> str | None:
    """Return the known name nearest to `name`, or None when none is near. Upper and lower case make no difference."""
    if len(name) > LONGEST:
        return None
    by_lower = {candidate.lower(): candidate for candidate in islice(known, MOST_KNOWN) if len(candidate) <= LONGEST}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the end of a message, or an empty text."""
    nearest = nearest_name(name, known)
    return f"; did you mean {nearest!r}?" if nearest is not None else ""
