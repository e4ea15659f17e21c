"""Which workloads the words of `--workloads` name, of those that both sides have. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.errors import DataSetError

LEAST_BEGINNING: Final = 4
"""A beginning of a uuid has at least so many characters."""


def choose_workloads(words: Sequence[str] | None, known: Collection[str]) -> frozenset[str]:
    """Return the uuids that words name, each by itself or by its beginning; None names all.

    Raises:
        DataSetError: a word names none.
    """
    if words is None:
        return frozenset(known)
    found = {word: [uuid for uuid in known if uuid == word or _begins(uuid, word)] for word in words}
    unknown = [word for word, uuids in found.items() if not uuids]
    if unknown or not words:
        hint = did_you_mean(unknown[0], known) if unknown else ""
        raise DataSetError(f"workloads: {unknown[0]!r} is none of both sides{hint}" if unknown else "workloads: none")
    return frozenset(uuid for uuids in found.values() for uuid in uuids)


def _begins(uuid: str, word: str) -> bool:
    return len(word) >= LEAST_BEGINNING and uuid.startswith(word)
