"""Checks that a solution's entry function exists and accepts the definition's arguments. Finds the solution's binding.
No source is run.

Python is parsed. C++ and CUDA sources are searched for the line that exports the function. A check passes if the
sources are inconclusive. The build and the first call then decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from inspect import Parameter, Signature
from typing import Final, NamedTuple

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.reference import A_CLASS, MOST_CHARACTERS, read_module
from flashinfer_bench.data.solution import Solution, SupportedBindings, SupportedLanguages

SETUP: Final = "setup"
"""A function with this name, beside the entry function, prepares calls of the entry function (docs/solutions.md,
"Setup")."""
COMPILED: Final = frozenset(language for language in SupportedLanguages if language.record.is_compiled)
COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
"""A comment without an end extends to the end of the text. Without this rule, a text with many `/*` would take
quadratic time."""
TVM_FFI_EXPORT: Final = re.compile(r"\bTVM_FFI_DLL_EXPORT_TYPED_FUNC\s*\(\s*(\w+)|\b__tvm_ffi_(\w+)")
EXPORT_MACRO: Final = re.compile(
    r"^[ \t]*#[ \t]*define\b.*(?:TVM_FFI_DLL_EXPORT|PYBIND11_MODULE|\.def\b)", re.MULTILINE
)
MODULE: Final = re.compile(r"\bPYBIND11_MODULE\s*\(")
MODULE_FUNCTION: Final = re.compile(r'\bdef\s*\(\s*"(\w+)"')
OPERATORS: Final = re.compile(r"\bTORCH_LIBRARY(?:_FRAGMENT)?\s*\(")
"""Code that registers functions as torch operators."""
TORCH_HEADER: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]((?:torch|ATen|c10)/[^>"\n]+)', re.MULTILINE)


class FoundBinding(NamedTuple):
    """The binding of a compiled solution."""

    binding: SupportedBindings
    note: str | None = None
    """A line for the build's log; None if the spec gives the binding, or if the binding is tvm-ffi."""


def find_binding(solution: Solution) -> FoundBinding:
    """Return the binding of a C++ or CUDA solution: from its spec, else from its sources, else tvm-ffi."""
    declared = solution.spec.binding
    if declared is not None or solution.spec.language not in COMPILED:
        return FoundBinding(declared or SupportedBindings.TVM_FFI)
    texts = {source.path: COMMENT.sub(" ", source.content) for source in solution.sources}
    for pattern, what in (
        (MODULE, "PYBIND11_MODULE"),
        (TVM_FFI_EXPORT, None),
        (OPERATORS, "TORCH_LIBRARY"),
        (TORCH_HEADER, "#include <{}>"),
    ):
        for path, text in texts.items():
            if found := pattern.search(text):
                if what is None:
                    return FoundBinding(SupportedBindings.TVM_FFI)
                reason = f"{path} has {what.format(*found.groups())}"
                return FoundBinding(SupportedBindings.TORCH, f"binding torch: the spec names none, and {reason}")
    return FoundBinding(SupportedBindings.TVM_FFI)


def registers_operators(solution: Solution) -> bool:
    """Return whether a solution's sources register torch operators."""
    return any(OPERATORS.search(COMMENT.sub(" ", source.content)) for source in solution.sources)


def check_entry(solution: Solution, definition: Definition | None = None) -> list[str]:
    """Return a line for each problem of the entry point. With a definition, also check the number of arguments."""
    if sum(len(source.content) for source in solution.sources) > MOST_CHARACTERS:
        return []  # the build and the first call decide
    if solution.spec.language in COMPILED:
        return list(_check_export(solution))
    try:
        return list(_check_python(solution, definition))
    except ValueError as error:
        return [f"{solution.get_entry_path()}: {error}"]


def _check_python(solution: Solution, definition: Definition | None) -> Iterator[str]:
    module, symbol = read_module(solution.get_entry_source().content), solution.get_entry_symbol()
    if symbol not in module.names:
        if "*" not in module.names:
            yield _missing(solution, module.functions)
        return
    signature, has_setup = module.signatures.get(symbol), SETUP in module.names
    if (why := module.names[symbol]) not in (None, A_CLASS):
        yield f"{solution.spec.entry_point} {why}"
    elif signature is not None:
        keyed = [one for one in signature.parameters.values() if one.kind is Parameter.KEYWORD_ONLY]
        needed = [one.name for one in keyed if one.default is Parameter.empty and not has_setup]
        if needed:
            yield f"{symbol}{signature} needs {', '.join(needed)} by keyword; all arguments are given by position"
        elif definition is not None:
            yield from _check_arguments(solution, signature, definition, has_setup=has_setup)


def _check_arguments(
    solution: Solution, signature: Signature, definition: Definition, *, has_setup: bool
) -> Iterator[str]:
    def fits(count: int) -> bool:
        try:  # the result of `setup` is known only after a call
            (signature.bind_partial if has_setup else signature.bind)(*range(count))
        except TypeError:
            return False
        return True

    inputs, outputs = len(definition.inputs), len(definition.outputs)
    counts, declared = {True: inputs + outputs, False: inputs}, solution.spec.declared_style
    wanted = list(counts) if declared is None else [declared]
    fitting = [style for style, count in counts.items() if fits(count)]
    if not set(wanted) & set(fitting):
        hint = f"; is destination_passing_style {str(fitting[0]).lower()} meant?" if fitting else ""
        given = f"{' or '.join(str(counts[style]) for style in wanted)} arguments ({inputs} inputs, {outputs} outputs)"
        call = f"{solution.get_entry_symbol()}{signature}"
        yield f"{call} cannot be called as {definition.name} calls it, with {given}{hint}"


def list_exports(text: str) -> list[str]:
    """Return the functions that C++ or CUDA code exports. The text must have no comments."""
    return [first or second for first, second in TVM_FFI_EXPORT.findall(text)] + MODULE_FUNCTION.findall(text)


def _check_export(solution: Solution) -> Iterator[str]:
    text = "\n".join(COMMENT.sub(" ", source.content) for source in solution.sources)
    symbol, names = solution.get_entry_symbol(), list_exports(text)
    if symbol in names or EXPORT_MACRO.search(text.replace("\\\n", " ")):
        return  # a macro of the solution may export the function, and only the compiler expands macros
    if find_binding(solution).binding is SupportedBindings.TVM_FFI:
        yield f"{_missing(solution, names)}; export it with TVM_FFI_DLL_EXPORT_TYPED_FUNC({symbol}, your_function)"
    elif not registers_operators(solution):  # operators may have any name, so loading decides
        module = f'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("{symbol}", &your_function); }}'
        yield f"{_missing(solution, names)}; bind it with {module}"


def _missing(solution: Solution, names: Sequence[str]) -> str:
    symbol, path = solution.get_entry_symbol(), solution.get_entry_path()
    there = f"; there is {', '.join(dict.fromkeys(names))}" if names else ""
    return f"{path}: there is no function {symbol!r}{did_you_mean(symbol, names) or there}"
