"""Puts off the import of torch's compiler, which takes a second or two, until something of it is used.

Tensors without memory (`stand_in.py`) ask its package for some settings and for the decorator `disable`, no more. A
process that only finds out what Triton would compile has no use for the rest.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib import util
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

PACKAGE: Final = "torch._dynamo"
SETTINGS: Final = f"{PACKAGE}.config"
USERS: Final = (f"{PACKAGE}.", "torch._inductor")
"""What is imported with such a name wants all of the package."""


class LateDynamo(ModuleType):
    """Stands in for the package: it has the settings and `disable`. Whatever else is asked for makes it give way."""

    @staticmethod
    def disable(fn: Callable[..., Any] | None = None, *_how: Any, **_more: Any) -> Callable[..., Any]:
        """Return a function as it is: nothing is compiled here."""
        return (lambda given: given) if fn is None else fn

    def give_way(self) -> ModuleType:
        """Import the package, unless that was done, and return it."""
        if sys.modules.get(PACKAGE) is self:
            for held in (PACKAGE, SETTINGS):
                sys.modules.pop(held, None)
        return importlib.import_module(PACKAGE)

    def __getattr__(self, name: str) -> Any:
        """Return what the package has by a name."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.give_way(), name)


class DynamoWatch(MetaPathFinder):
    """Has the package imported before what wants all of it. It finds only what that has brought."""

    def __init__(self, late: LateDynamo) -> None:
        self._late = late

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to import a module that came with the package; None for any other."""
        del path, target
        if sys.modules.get(PACKAGE) is not self._late or fullname == SETTINGS or not fullname.startswith(USERS):
            return None
        self._late.give_way()
        held = sys.modules.get(fullname)
        return None if held is None else util.spec_from_loader(fullname, Brought(held))


class Brought(Loader):
    """Gives a module that is there."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return it."""
        del spec
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


def put_off_dynamo() -> None:
    """Have the package imported when it is used, unless it is there already, or this version of torch has none."""
    found = None if PACKAGE in sys.modules else util.find_spec(PACKAGE)
    if found is not None and found.submodule_search_locations:
        late = LateDynamo(PACKAGE)
        late.__path__ = list(found.submodule_search_locations)
        late.__spec__ = found
        sys.modules[PACKAGE] = late
        sys.meta_path.insert(0, DynamoWatch(late))
