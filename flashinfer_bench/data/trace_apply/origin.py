"""The origin of a written solution, which FlashInfer ignores. This package restores the original solution from the
origin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flashinfer_bench.data.solution import Solution

ORIGIN: Final = "flashinfer_bench"
"""Key in a written solution for the original definition and spec."""
WRAPPER_FILE: Final = "flashinfer_apply.py"
"""The file that is added to a solution whose call differs from FlashInfer's."""


def note_origin(written: Solution, solution: Solution) -> dict[str, Any]:
    """Return a written solution as a JSON object that includes the origin."""
    return {**written.to_dict(), ORIGIN: {"definition": solution.definition, "spec": solution.spec.to_dict()}}


def restore_origin(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the original of a written solution, as a JSON object. A solution without an origin is returned
    unchanged."""
    if not isinstance(origin := raw.get(ORIGIN), Mapping):
        return dict(raw)
    sources = [source for source in raw["sources"] if source["path"] != WRAPPER_FILE]
    kept = {key: value for key, value in raw.items() if key != ORIGIN}
    return {**kept, **origin, "sources": sources}
