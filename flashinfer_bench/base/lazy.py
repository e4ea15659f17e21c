"""The public names of a package, each imported at its first use. Imports no other module of the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str,
    public: Sequence[str],
    homes: Mapping[str, Sequence[str]],
    *,
    left_out: Callable[[str], str | None] = lambda _: None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    Args:
        package: its full name.
        public: its `__all__`.
        homes: module → the names that it defines. A module is named below the package, or by its full name. If two
            modules list a name, the first one counts.
        left_out: takes a name; returns why the package lacks the name. None: the package never had it.
    """

    def find(name: str) -> Any:
        home = next((home for home, names in homes.items() if name in names), None)
        if home is not None:
            return getattr(import_module(home if home.startswith(ROOT) else f"{package}.{home}"), name)
        reason = left_out(name)
        if reason is not None:
            raise ImportError(f"{package} has no {name}: {reason}", name=package)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted(public)


ROOT = f"{__name__.partition('.')[0]}."
"""A home that begins with this is a full name."""
