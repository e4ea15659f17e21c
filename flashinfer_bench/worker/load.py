"""The line where solution code enters a process.

Nothing else in the package imports what a solution brought. The sources lie in a folder of their own, which becomes
a package (so `from .helper import f` works) and is first on the import path (so `import helper` works too).
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.worker.protocol import Signature

PACKAGE: Final = "flashinfer_bench_solution"
POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class EntryPointMissing(Exception):
    """The module was imported, and has no callable of that name."""


def load_entry(directory: Path, entry: str, symbol: str) -> Callable[..., Any]:
    """Import the entry file and return the entry function.

    Args:
        directory: the artifact's folder.
        entry: the file with the entry point, relative to the folder.
        symbol: the name of the function.

    Raises:
        EntryPointMissing: there is no callable of that name; whatever the file itself raises comes through.
    """
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(directory)]
    sys.modules[PACKAGE] = package
    sys.path.insert(0, str(directory))
    parts = Path(entry).with_suffix("").parts
    for depth in range(1, len(parts)):
        folder = types.ModuleType(".".join((PACKAGE, *parts[:depth])))
        folder.__path__ = [str(directory.joinpath(*parts[:depth]))]
        sys.modules[folder.__name__] = folder
    name = ".".join((PACKAGE, *parts))
    spec = importlib.util.spec_from_file_location(name, directory / entry)
    if spec is None or spec.loader is None:
        raise EntryPointMissing(f"{entry} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    function = getattr(module, symbol, None)
    if not callable(function):
        names = sorted(n for n, value in vars(module).items() if callable(value) and not n.startswith("_"))
        raise EntryPointMissing(f"{entry} defines no function {symbol!r}; it has: {', '.join(names[:20]) or 'none'}")
    return function  # type: ignore[no-any-return]


def describe_signature(function: Callable[..., Any]) -> Signature | None:
    """Return how the function may be called by position, or None where Python cannot tell."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in POSITIONAL]
    required = sum(p.default is inspect.Parameter.empty for p in positional)
    endless = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    text = "(" + ", ".join(str(p) for p in parameters) + ")"
    return Signature(text=text[:500], minimum=required, maximum=None if endless else len(positional))
