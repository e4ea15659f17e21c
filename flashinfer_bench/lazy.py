"""The public names of a package, each imported when it is first asked for. Imports nothing of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, public: Sequence[str], homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    Args:
        package: its full name.
        public: its `__all__`.
        homes: module below the package → names that it defines. Where two list a name, the first one has it.
    """

    def find(name: str) -> Any:
        home = next((home for home, names in homes.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home}"), name)

    return find, lambda: sorted(public)
