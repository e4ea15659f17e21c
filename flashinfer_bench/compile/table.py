"""Which language is built by which builder, and which cannot be built on this machine, with the reason.

Adding a language is a module in `builders/` and a line in BUILDERS.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Final

from flashinfer_bench.compile.artifact import Artifact
from flashinfer_bench.compile.builders.python import build_python
from flashinfer_bench.data import Solution, SupportedLanguages

Builder = Callable[[Solution, Path], Artifact]

BUILDERS: Final[dict[str, Builder]] = {"python": build_python, "triton": build_python}

NEEDED_PACKAGE: Final = {"triton": "triton"}


def language_name(language: SupportedLanguages | str) -> str:
    """Return a language as it stands in a solution file."""
    return language.value if isinstance(language, SupportedLanguages) else language


def unavailable_languages(*, is_installed: Callable[[str], bool] | None = None) -> dict[str, str | None]:
    """Return each language that solutions may name → why it cannot be built here, or None where it can."""
    installed = is_installed or (lambda package: importlib.util.find_spec(package) is not None)
    reasons: dict[str, str | None] = {}
    for language in SupportedLanguages:
        name = language_name(language)
        package = NEEDED_PACKAGE.get(name)
        if name not in BUILDERS:
            reasons[name] = f"this version has no builder for {name} solutions"
        elif package is not None and not installed(package):
            reasons[name] = f"{name} is not installed; try: pip install {package}"
        else:
            reasons[name] = None
    return reasons


def build_solution(solution: Solution, root: Path) -> Artifact:
    """Build a solution, or find it built.

    Args:
        solution: what to build; its language must be one that BUILDERS has.
        root: the cache's folder.

    Raises:
        BuildFailure: the solution is at fault.
    """
    return BUILDERS[language_name(solution.spec.language)](solution, root)
