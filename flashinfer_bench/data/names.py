"""Finding the known name that a wrong one was probably meant to be, for messages. It never decides anything."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

NAME_CUTOFF: Final = 0.6
"""Least similarity (difflib ratio) at which a name is offered to somebody who asked for one that does not exist."""
KEY_CUTOFF: Final = 0.8
"""The same for a key that may well be meant as it stands."""


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = NAME_CUTOFF) -> str | None:
    """Return the known name nearest to `name`, or None when nothing is near; upper and lower case count as near."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the end of a message, or an empty text."""
    nearest = nearest_name(name, known)
    return f"; did you mean {nearest!r}?" if nearest is not None else ""
