"""Loads solution code into this process: a Python file, or a shared library of tvm-ffi or torch.

No other module of the package imports files of a solution. The folder of Python sources becomes a package, so that
`from .helper import f` works. It is first on the import path, so that `import helper` works too.
"""

from __future__ import annotations

import ast
import ctypes
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
import types
from collections.abc import Callable, Container, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch.utils.dlpack import from_dlpack

from flashinfer_bench.base.named_call import POSITIONAL, read_signature
from flashinfer_bench.worker.jit.start import leave_untuned
from flashinfer_bench.worker.protocol import MAX_RETURNED, Signature

PACKAGE: Final = "flashinfer_bench_solution"
NOTHING: Final = "None"
"""Name of the return type None in Python and tvm-ffi."""
TENSOR_BRIDGE: Final = "__dlpack_c_exchange_api__"
"""With this attribute tvm-ffi reads and returns torch's tensors directly. Older releases of torch lack it."""
SHOWN: Final = 20
"""Maximum number of names of a module in a message."""
SETUP: Final = "setup"

Function = Callable[..., Any]


class EntryPointMissing(Exception):
    """The module has no callable of that name."""


class KeywordRequired(Exception):
    """The entry function cannot be called by position alone."""


class LoadedEntry(NamedTuple):
    """The functions of an entry file."""

    function: Function
    signature: Signature | None = None
    """How the entry function is called; None if this is unknown."""
    setup: Function | None = None
    """Called before the entry function with the same arguments. It returns keyword arguments for the entry function."""
    setup_signature: Signature | None = None
    """How `setup` is called; None if this is unknown."""

    def bind_setup(self, inputs: Sequence[Any], given: Sequence[Any]) -> Callable[[], Any]:
        """Return the call of `setup`: with all arguments of a call, or with only the inputs if `setup` takes no
        more."""
        if self.setup is None:
            return dict
        most = None if self.setup_signature is None else self.setup_signature.maximum
        return partial(self.setup, *(given if most is None or most >= len(given) else inputs))


def load_entry(directory: Path, entry: str, symbol: str, *, kind: str) -> LoadedEntry:
    """Load the entry file.

    Args:
        directory: the artifact's folder.
        entry: the file with the entry point, relative to the folder.
        symbol: the name of the function.
        kind: how the file is loaded: a key of LOADERS.

    Raises:
        EntryPointMissing: there is no callable of that name.
        KeywordRequired: it needs a keyword argument. Exceptions of the file itself are passed on.
    """
    return LOADERS[kind](directory, entry, symbol)


def load_python(directory: Path, entry: str, symbol: str) -> LoadedEntry:
    """Import a Python solution."""
    module = import_file(directory, entry)
    function = find_callable(module, entry, symbol)
    setup = find_setup(module, function)
    if setup is None:
        return LoadedEntry(function, describe_signature(function))
    takes = describe_signature(setup)
    return LoadedEntry(function, describe_signature(function, prepared_for=takes, is_prepared=True), setup, takes)


def load_reference(directory: Path, entry: str, symbol: str) -> LoadedEntry:
    """Import a definition's reference. The reference gets its inputs by name. A `setup` in it is not special."""
    return LoadedEntry(find_callable(import_file(directory, entry), entry, symbol))


def import_file(directory: Path, entry: str) -> types.ModuleType:
    """Import a Python file as a module of the solution's package. Its parent folders are packages."""
    sys.path.insert(0, str(directory))
    parts = Path(entry).with_suffix("").parts
    for depth in range(len(parts)):
        package = types.ModuleType(".".join((PACKAGE, *parts[:depth])))
        package.__path__ = [str(directory.joinpath(*parts[:depth]))]
        sys.modules[package.__name__] = package
    name = ".".join((PACKAGE, *parts))
    spec = importlib.util.spec_from_file_location(name, directory / entry)
    if spec is None or spec.loader is None:
        raise EntryPointMissing(f"{entry} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    leave_untuned()
    return module


def load_torch(directory: Path, entry: str, symbol: str) -> LoadedEntry:
    """Load an extension module or torch operators. The linked libraries of torch are already loaded."""
    name, path = Path(entry).stem, str(directory / entry)
    known = frozenset(torch._C._dispatch_get_all_op_names())
    has_module = hasattr(ctypes.CDLL(path), f"PyInit_{name}")
    module = import_extension(name, path) if has_module else types.ModuleType(name)
    operator = None if hasattr(module, symbol) else find_operator(symbol, known)
    if operator is not None:
        return LoadedEntry(operator, describe_signature(operator))
    function = find_callable(module, "the module" if has_module else "the library", symbol)
    signature = read_pybind_signature(getattr(function, "__doc__", None) or "")
    setup = find_setup(module, function)
    takes = None if setup is None else read_pybind_signature(getattr(setup, "__doc__", None) or "")
    return LoadedEntry(function, leave_to_setup(signature, takes), setup, takes)


def import_extension(name: str, path: str) -> types.ModuleType:
    """Import a library as an extension module."""
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(name, loader, origin=path))
    loader.exec_module(module)
    return module


def find_operator(symbol: str, known: Container[str]) -> Function | None:
    """Return torch's operator of that name; None if there is none, or if it existed before the load (`known`)."""
    for found in torch._C._dispatch_get_all_op_names():
        space, _, rest = found.partition("::")
        name, _, overload = rest.partition(".")
        if found not in known and name == symbol:
            packet = getattr(getattr(torch.ops, space), name)
            function: Function = getattr(packet, overload or "default")
            return function
    return None


def load_tvm_ffi(directory: Path, entry: str, symbol: str) -> LoadedEntry:
    """Open a library that exports functions by tvm-ffi's convention."""
    if not hasattr(torch.Tensor, TENSOR_BRIDGE) and importlib.util.find_spec("torch_c_dlpack_ext") is None:
        os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")  # otherwise it compiles a bridge in every worker
    import tvm_ffi  # an optional package, and this is its place

    module = tvm_ffi.load_module(str(directory / entry))
    if not module.implements_function(symbol):
        raise EntryPointMissing(f"the library exports no function {symbol!r}")
    function: Function = module.get_function(symbol)
    metadata = module.get_function_metadata(symbol) or {}
    parameters, returned = read_tvm_schema(metadata.get("type_schema"))
    signature = None if parameters is None else make_signature(parameters, len(parameters), len(parameters))
    if returned == NOTHING:
        return LoadedEntry(function, signature)
    return LoadedEntry(lambda *arguments: to_torch(function(*arguments)), signature)


def to_torch(value: Any) -> Any:
    """Return a tvm-ffi function's result as torch tensors, alone or in a list."""
    if isinstance(value, (torch.Tensor, str, int, float)) or value is None:
        return value
    if isinstance(value, Sequence):
        return [to_torch(one) for one in value]
    return from_dlpack(value) if hasattr(value, "__dlpack__") else value


LOADERS: Final[dict[str, Callable[[Path, str, str], LoadedEntry]]] = {
    "python": load_python,
    "reference": load_reference,
    "torch": load_torch,
    "tvm-ffi": load_tvm_ffi,
}


def find_callable(module: types.ModuleType, where: str, symbol: str) -> Function:
    """Return a module's callable of that name, or raise EntryPointMissing with the module's names."""
    function: Function | None = getattr(module, symbol, None)
    if not callable(function):
        names = sorted(n for n, value in vars(module).items() if callable(value) and not n.startswith("_"))
        raise EntryPointMissing(f"{where} defines no function {symbol!r}; it has: {', '.join(names[:SHOWN]) or 'none'}")
    return function


def find_setup(module: types.ModuleType, entry: Function) -> Function | None:
    """Return the module's `setup`, unless it is the entry function itself or not callable."""
    setup: Function | None = getattr(module, SETUP, None)
    return setup if callable(setup) and setup is not entry else None


def leave_to_setup(signature: Signature | None, setup: Signature | None) -> Signature | None:
    """Return how an entry function can be called by position, if its `setup` gives the other arguments by keyword.

    `setup` gets the same arguments by position, so the arguments that `setup` requires are enough.
    """
    if signature is None or setup is None or setup.minimum >= signature.minimum:
        return signature
    return signature.model_copy(update={"minimum": setup.minimum})


def describe_signature(
    function: Function, *, prepared_for: Signature | None = None, is_prepared: bool = False
) -> Signature | None:
    """Return how the function can be called by position; None if Python does not know it.

    Args:
        function: the entry function, or its `setup`.
        prepared_for: how its `setup` is called; None if it is unknown.
        is_prepared: a `setup` gives it keyword arguments.

    Raises:
        KeywordRequired: it needs a keyword argument, and there is no `setup` to give it.
    """
    signature = read_signature(function)
    if signature is None:
        return None
    parameters = signature.parameters.values()
    shown = list(map(str, parameters))
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if keywords and not is_prepared:
        what = SETUP if getattr(function, "__name__", "") == SETUP else "the entry function"
        raise KeywordRequired(
            f"{what} ({', '.join(shown)}) needs {', '.join(keywords)} by keyword; "
            "it is called with positional arguments only"
        )
    positional = [p for p in parameters if p.kind in POSITIONAL]
    required = sum(p.default is p.empty for p in positional)
    is_endless = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    found = make_signature(shown, required, None if is_endless else len(positional))
    found = found.model_copy(update={"names": [p.name[:500] for p in positional[:MAX_RETURNED]]})
    # Keyword-only parameters get their values from setup.
    return found if keywords else leave_to_setup(found, prepared_for)


def make_signature(parameters: Sequence[str], minimum: int, maximum: int | None) -> Signature:
    """Return a signature with these parameters."""
    return Signature(text=f"({', '.join(parameters)})"[:500], minimum=minimum, maximum=maximum)


def read_pybind_signature(doc: str) -> Signature | None:
    """Read the signature of a pybind11 function from the first line of its docstring; None if it has none.

    The line is a Python definition, except for C++ names and for values shown as `<...>`.
    """
    line = re.sub("<[^>]*>", "_", doc.strip().partition("\n")[0]).replace("::", ".")
    try:
        found = ast.parse(f"def {line}: ...").body[0]
    except (SyntaxError, ValueError):
        return None
    if not isinstance(found, ast.FunctionDef) or "Overloaded function." in doc:
        return None
    count = len(found.args.posonlyargs) + len(found.args.args)
    maximum = None if found.args.vararg else count
    return make_signature([ast.unparse(found.args)], count - len(found.args.defaults), maximum)


def read_tvm_schema(schema: str | None) -> tuple[list[str] | None, str | None]:
    """Return a tvm-ffi function's parameter types and its return type from its metadata; None if it has none.

    Two forms are in use: `args` with the return type first, and `named_args` with `params` and `return`.
    """
    try:
        described = json.loads(schema or "")
        named = described.get("named_args")
        types_ = [*named["return"], *named["params"]] if named else described["args"]
        returned, *parameters = [str(one["type"]) for one in types_]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, None
    return parameters, returned
