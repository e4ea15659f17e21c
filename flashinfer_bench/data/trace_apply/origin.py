"""The origin of a written solution. FlashInfer ignores it; this package restores the original solution from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flashinfer_bench.data.solution import Solution

ORIGIN: Final = "flashinfer_bench"
"""Key of a written solution: its definition and its spec in this package."""
WRAPPER_FILE: Final = "flashinfer_apply.py"
"""The file that is added to a solution whose call differs from FlashInfer's."""


def note_origin(written: Solution, solution: Solution) -> dict[str, Any]:
    """Return a written solution as a JSON object with its origin."""
    return {**written.to_dict(), ORIGIN: {"definition": solution.definition, "spec": solution.spec.to_dict()}}


def restore_origin(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the solution that a written solution was made from, as a JSON object. Without an origin, return the
    written solution unchanged."""
    if not isinstance(origin := raw.get(ORIGIN), Mapping):
        return dict(raw)
    sources = [source for source in raw["sources"] if source["path"] != WRAPPER_FILE]
    kept = {key: value for key, value in raw.items() if key != ORIGIN}
    return {**kept, **origin, "sources": sources}
