"""Finding the known name that a wrong one was probably meant to be, for messages. It never decides anything."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

NAME_CUTOFF: Final = 0.6
"""Offer a known name to somebody who asked for an unknown one at this similarity (difflib ratio) or more."""
KEY_CUTOFF: Final = 0.8
"""Warn of an unknown key at this similarity to a known one or more. It is higher, since the key may be right."""


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = NAME_CUTOFF) -> str | None:
    """Return the known name nearest to `name`, or None when none is near. Upper and lower case make no difference."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the end of a message, or an empty text."""
    nearest = nearest_name(name, known)
    return f"; did you mean {nearest!r}?" if nearest is not None else ""
