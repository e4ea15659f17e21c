"""Finding the known name that a wrong one was probably meant to be, for messages. It never decides anything.

Names come from files and requests of strangers, so the work is bounded: of one search by `LONGEST` to `MOST_WORK`, and
the number of searches for the faults of one file by `HintLimit`.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable
from contextvars import ContextVar, Token
from itertools import islice
from typing import Final

NAME_CUTOFF: Final = 0.6
"""Offer a known name to somebody who asked for an unknown one at this similarity (difflib ratio) or more."""
KEY_CUTOFF: Final = 0.8
"""Warn of an unknown key at this similarity to a known one or more. It is higher, since the key may be right."""

LONGEST: Final = 300
"""Longer names, in characters, are near to none."""
MOST_KNOWN: Final = 2000
"""Look at this many known names."""
MOST_CHARACTERS: Final = 200_000
"""Of those whose length allows it, look at so many characters together, the nearest lengths first: takes some 20 ms."""
MOST_PAIR_WORK: Final = 200_000
"""Two names whose comparison takes more are not near: names of 199 a and b took 70 ms. In steps, see `_work`."""
MOST_WORK: Final = 1_000_000
"""Compare names up to so many steps together, the likeliest first: takes 20 ms at most."""
MOST_HINTS: Final = 20
"""Search for the names that the first so many faults of one file may mean."""


class HintLimit:
    """While it is entered, `did_you_mean` answers `MOST_HINTS` times in all. One inside another counts for the outer.

    It may be entered again, so that one of them serves all objects of a file.
    """

    def __init__(self) -> None:
        self._left = MOST_HINTS
        self._token: Token[HintLimit | None] | None = None

    def __enter__(self) -> None:
        if _limit.get() is None:
            self._token = _limit.set(self)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _limit.reset(self._token)
            self._token = None

    def take(self) -> bool:
        """Take one of the hints that are left; False where none is."""
        self._left -= 1
        return self._left >= 0


_limit: ContextVar[HintLimit | None] = ContextVar("hint_limit", default=None)


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = NAME_CUTOFF) -> str | None:
    """Return the known name nearest to `name`, or None when none is near. Upper and lower case make no difference."""
    if len(name) > LONGEST:
        return None
    wanted = name.lower()
    by_lower = {candidate.lower(): candidate for candidate in islice(known, MOST_KNOWN) if len(candidate) <= LONGEST}
    matcher = difflib.SequenceMatcher(b=wanted)
    best, nearest, left = cutoff, "", MOST_WORK
    for bound, candidate in _likeliest(matcher, _of_near_length(wanted, by_lower, cutoff), cutoff):
        work = _work(candidate, wanted)
        if bound < best or left <= 0:
            break
        if work <= MOST_PAIR_WORK:
            left -= work
            matcher.set_seq1(candidate)
            best, nearest = max((best, nearest), (matcher.ratio(), candidate))
    return by_lower[nearest] if nearest else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the end of a message, or an empty text."""
    limit = _limit.get()
    if limit is not None and not limit.take():
        return ""
    nearest = nearest_name(name, known)
    return f"; did you mean {nearest!r}?" if nearest is not None else ""


def _of_near_length(wanted: str, candidates: Iterable[str], cutoff: float) -> Iterable[str]:
    """Yield the candidates whose length allows the ratio, the nearest lengths first, up to `MOST_CHARACTERS`."""
    size, left = len(wanted), MOST_CHARACTERS
    allowed = [one for one in candidates if 2 * min(len(one), size) >= cutoff * (len(one) + size)]
    for candidate in sorted(allowed, key=lambda one: abs(len(one) - size)):
        left -= len(candidate) + size
        if left < 0:
            return
        yield candidate


def _likeliest(
    matcher: difflib.SequenceMatcher[str], candidates: Iterable[str], cutoff: float
) -> list[tuple[float, str]]:
    """Return the candidates that may reach the ratio, each behind an upper bound of its own, the highest first."""
    bounds = []
    for candidate in candidates:
        matcher.set_seq1(candidate)
        bound = matcher.quick_ratio()
        if bound >= cutoff:
            bounds.append((bound, candidate))
    return sorted(bounds, reverse=True)


def _work(one: str, other: str) -> int:
    """Return the most steps that `ratio` takes: it may look at all pairs of equal letters once for each letter."""
    counts = Counter(other)
    return sum(count * counts[letter] for letter, count in Counter(one).items()) * min(len(one), len(other))
