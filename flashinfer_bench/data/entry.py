"""Checks that a solution's entry function is there and takes what its definition gives; finds its binding. No source is
run.

Python is parsed; C++ and CUDA are searched for the line that exports the function. What cannot be known this way
passes: then the build and the first call decide.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.reference import (
    MOST_CHARACTERS,
    find_bindings,
    keeps_arguments,
    parse_module,
    why_not_called,
)
from flashinfer_bench.data.solution import Solution, SupportedBindings, SupportedLanguages

SETUP: Final = "setup"
"""A function of this name beside the entry function prepares its calls (docs/timing.md, "Setup")."""
COMPILED: Final = frozenset(language for language in SupportedLanguages if language.record.is_compiled)
COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
"""A comment without an end goes to the end of the text: looking for the end of each would take quadratic time."""
TVM_FFI_EXPORT: Final = re.compile(r"\bTVM_FFI_DLL_EXPORT_TYPED_FUNC\s*\(\s*(\w+)|\b__tvm_ffi_(\w+)")
DEFINE: Final = re.compile(r"\s*#\s*define\b")
EXPORT: Final = re.compile(r"TVM_FFI_DLL_EXPORT|PYBIND11_MODULE|\.def\b")
MOST_NAMED: Final = 20
"""A message names this many functions."""
MODULE: Final = re.compile(r"\bPYBIND11_MODULE\s*\(")
MODULE_FUNCTION: Final = re.compile(r'\bdef\s*\(\s*"(\w+)"')
OPERATORS: Final = re.compile(r"\bTORCH_LIBRARY(?:_FRAGMENT)?\s*\(")
"""What registers functions as torch's operators."""
TORCH_HEADER: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]((?:torch|ATen|c10)/[^>"\n]+)', re.MULTILINE)


@dataclass(frozen=True)
class FoundBinding:
    """The binding of a compiled solution."""

    binding: SupportedBindings
    told_by: str | None
    """What in its sources tells it; None where its spec says it, or nothing does."""

    @property
    def note(self) -> str | None:
        """A line for the build's log; None where the spec says it, or the format's default holds."""
        return f"binding {self.binding.value}: the spec names none, and {self.told_by}" if self.told_by else None


def find_binding(solution: Solution) -> FoundBinding:
    """Return a C++ or CUDA solution's binding: from its spec, else from what its sources use, else tvm-ffi."""
    declared = solution.spec.binding
    if declared is not None or solution.spec.language not in COMPILED:
        return FoundBinding(declared or SupportedBindings.TVM_FFI, None)
    texts = {source.path: COMMENT.sub(" ", source.content) for source in solution.sources}
    for pattern, binding, what in (
        (MODULE, SupportedBindings.TORCH, "PYBIND11_MODULE"),
        (TVM_FFI_EXPORT, SupportedBindings.TVM_FFI, None),
        (OPERATORS, SupportedBindings.TORCH, "TORCH_LIBRARY"),
        (TORCH_HEADER, SupportedBindings.TORCH, "#include <{}>"),
    ):
        for path, text in texts.items():
            if found := pattern.search(text):
                return FoundBinding(binding, f"{path} has {what.format(*found.groups())}" if what else None)
    return FoundBinding(SupportedBindings.TVM_FFI, None)


def registers_operators(solution: Solution) -> bool:
    """Tell whether a solution's sources register functions as torch's operators, and not only a module's functions."""
    return any(OPERATORS.search(COMMENT.sub(" ", source.content)) for source in solution.sources)


@dataclass(frozen=True)
class Arity:
    """How many arguments a function takes by position."""

    minimum: int
    maximum: int | None
    """None where there is no limit."""
    text: str
    """The parameters as they are written."""
    keywords: tuple[str, ...] = ()
    """Parameters that have to be given by keyword."""

    def fits(self, count: int) -> bool:
        """Tell whether a call may have this many arguments."""
        return self.minimum <= count and (self.maximum is None or count <= self.maximum)


def check_entry(solution: Solution, definition: Definition | None = None) -> list[str]:
    """Return a line for each thing that is wrong with the entry point; with a definition also count its arguments."""
    if sum(len(source.content) for source in solution.sources) > MOST_CHARACTERS:
        return []  # the build and the first call decide
    if solution.spec.language in COMPILED:
        return list(_check_export(solution))
    try:
        return _check_python(solution, definition)
    except RecursionError:
        return []  # nested too deeply to be told here; the import decides


def _check_python(solution: Solution, definition: Definition | None) -> list[str]:
    try:
        bound = list(find_bindings(parse_module(solution.get_entry_source().content).body))
    except ValueError as error:
        return [f"{solution.get_entry_path()}: {error}"]
    symbol = solution.get_entry_symbol()
    found = [node for name, node in bound if name in (symbol, "*")]
    if not found:
        names = [name for name, node in bound if isinstance(node, ast.FunctionDef)]
        return [_missing(solution, names)]
    arity = _arity(found[-1])
    if arity is not None and any(name == SETUP for name, _ in bound):
        arity = replace(arity, minimum=0, keywords=())  # what setup gives is known only when it is called
    if not isinstance(found[-1], ast.ClassDef) and (why := why_not_called(found[-1])) is not None:
        return [f"{solution.spec.entry_point} {why}"]
    if arity is not None and arity.keywords:
        needed = ", ".join(arity.keywords)
        return [f"{symbol}({arity.text}) needs {needed} by keyword; it is called with positional arguments only"]
    return [] if arity is None or definition is None else list(_check_arity(solution, arity, definition))


def _arity(node: ast.stmt) -> Arity | None:
    """Return the arguments that a function takes; None where the node is no plain function."""
    if not isinstance(node, ast.FunctionDef) or not all(map(keeps_arguments, node.decorator_list)):
        return None
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    keyed = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    keywords = tuple(argument.arg for argument, default in keyed if default is None)
    return Arity(required, None if arguments.vararg else len(positional), ast.unparse(arguments), keywords)


def _check_arity(solution: Solution, arity: Arity, definition: Definition) -> Iterator[str]:
    inputs, outputs = len(definition.inputs), len(definition.outputs)
    given = f"{inputs} input{'s' * (inputs != 1)}"
    ways = {True: f"{given} and {outputs} output{'s' * (outputs != 1)} to write into", False: f"{given} alone"}
    counts = {True: inputs + outputs, False: inputs}
    declared = solution.spec.declared_style
    styles = [declared] if declared is not None else [True, False]
    symbol = solution.get_entry_symbol()
    if any(arity.fits(counts[style]) for style in styles):
        return
    expected = " or ".join(ways[style] for style in styles)
    other = [style for style in counts if style not in styles and arity.fits(counts[style])]
    hint = f"; is destination_passing_style {'true' if other[0] else 'false'} meant?" if other else ""
    yield f"{symbol}({arity.text}) cannot be called as {definition.name} calls it, with {expected}{hint}"


def _check_export(solution: Solution) -> Iterator[str]:
    text = "\n".join(COMMENT.sub(" ", source.content) for source in solution.sources)
    symbol = solution.get_entry_symbol()
    lines = text.replace("\\\n", " ").split("\n")
    if any(DEFINE.match(line) and EXPORT.search(line) for line in lines):
        return  # a macro of its own exports; what it makes of the name is the compiler's to say
    if find_binding(solution).binding is SupportedBindings.TORCH:
        names = MODULE_FUNCTION.findall(text)
        if registers_operators(solution):
            return  # an operator may be registered under any name; the load decides
        if not MODULE.search(text):
            yield "no source defines a module; bind with PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)"
        elif symbol not in names:
            yield f'{_missing(solution, names)}; bind it with m.def("{symbol}", &your_function)'
        return
    names = [first or second for first, second in TVM_FFI_EXPORT.findall(text)]
    if symbol not in names:
        yield f"{_missing(solution, names)}; export it with TVM_FFI_DLL_EXPORT_TYPED_FUNC({symbol}, your_function)"


def _missing(solution: Solution, names: Sequence[str]) -> str:
    symbol, path = solution.get_entry_symbol(), solution.get_entry_path()
    there = f"; there is {', '.join(list(dict.fromkeys(names))[:MOST_NAMED])}" if names else ""
    return f"{path}: there is no function {symbol!r}{did_you_mean(symbol, names) or there}"
