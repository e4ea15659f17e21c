"""Finds out what the sources of a draft do not say: language, entry function, and definition. No source is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.entry import COMMENT, MODULE_FUNCTION, SETUP, TVM_FFI_EXPORT
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.reference import ENTRY_NAME, parse_module, parse_reference
from flashinfer_bench.data.solution import SupportedLanguages
from flashinfer_bench.errors import DataSetError

PYTHON: Final = frozenset(SupportedLanguages.PYTHON.record.suffixes)
MAIN_STEMS: Final = ("main", "kernel", "solution")
"""Of several files the one of such a name has the entry function."""
EXPORTED_AS: Final = re.compile(
    r'(?:TVM_FFI_DLL_EXPORT_TYPED_FUNC\s*\(\s*(\w+)\s*,|\bdef\s*\(\s*"(\w+)"\s*,)\s*&?\s*([\w:]+)'
)
LAST_WORD: Final = re.compile(r"(\w+)\s*(?:=.*)?$", re.DOTALL)
LEAST_NAME: Final = 4
"""A definition's name of fewer characters is not looked for within a file's name."""
SHOWN: Final = 8


class EntryFacts(NamedTuple):
    """The entry function of a draft."""

    symbol: str
    parameters: tuple[str, ...] | None
    """The names of its parameters; None where the text does not tell them."""


class FoundDefinition(NamedTuple):
    """The definition of a draft."""

    name: str
    told_by: str
    """What told it, for people."""


def find_language(paths: Iterable[str], sources: Mapping[str, str]) -> SupportedLanguages | None:
    """Return the language that the sources are written in; None where no file tells it."""
    suffixes = {PurePosixPath(path).suffix.lower() for path in paths}
    if suffixes & PYTHON:
        return _find_python_kind(sources)
    found = [one for one in SupportedLanguages if suffixes.intersection(one.record.suffixes)]
    return found[-1] if found else None  # a solution with CUDA and C++ sources is CUDA's


def find_entry_file(language: SupportedLanguages, sources: Mapping[str, str]) -> str:
    """Return the path of the file that has the entry function.

    Raises:
        DataSetError: several files may have it.
    """
    wanted = {*language.record.suffixes}
    if language.record.requires_cuda:
        wanted |= {*SupportedLanguages.CPP.record.suffixes}
    fitting = [path for path in sources if PurePosixPath(path).suffix.lower() in wanted]
    if not fitting:
        raise DataSetError(f"no source of a {language.value} solution: there is {_some(sources)}")
    by_stem = {PurePosixPath(path).stem: path for path in reversed(fitting)}
    named = next((by_stem[stem] for stem in MAIN_STEMS if stem in by_stem), None)
    running = [path for path in fitting if ENTRY_NAME in _list_functions(path, sources[path])]
    chosen = fitting[0] if len(fitting) == 1 else named or (running[0] if len(running) == 1 else None)
    if chosen is None:
        raise DataSetError(
            f"several files may have the entry function: {_some(fitting)}; say which: --entry FILE::NAME"
        )
    return chosen


def find_entry(path: str, source: str, symbol: str | None = None) -> EntryFacts:
    """Return the entry function of a file: the given one, `run`, the only one, or the one with the file's name.

    Raises:
        DataSetError: the file cannot be parsed, or several functions may be meant.
    """
    functions = _list_functions(path, source, strictly=True)
    stem = PurePosixPath(path).stem
    chosen = symbol or next((name for name in (ENTRY_NAME, stem) if name in functions), None)
    if chosen is None and len(functions) > 1:
        raise DataSetError(f"{path}: several functions may be meant: {_some(functions)}; say which: --entry NAME")
    chosen = chosen or next(iter(functions), ENTRY_NAME)
    return EntryFacts(chosen, functions.get(chosen))


def find_definition(
    entry: EntryFacts, words: Sequence[str], definitions: Mapping[str, Definition], wanted: str | None = None
) -> FoundDefinition:
    """Return the definition: the wanted one, the one with these parameters, or the one that a name tells.

    Args:
        entry: the entry function.
        words: names of the file and of the folders around it, the innermost first.
        definitions: those of the set, by name.
        wanted: its name, where somebody says it.

    Raises:
        DataSetError: there is no such definition, or several may be meant.
    """
    if wanted is not None:
        if wanted not in definitions:
            raise DataSetError(f"the trace set has no definition {wanted!r}{did_you_mean(wanted, definitions)}")
        return FoundDefinition(wanted, "as given")
    fitting = [name for name, item in definitions.items() if _takes(entry.parameters, item)]
    if len(fitting) == 1:
        return FoundDefinition(fitting[0], "by its parameters")
    for word in words:
        named = _named_by(word, fitting or definitions)
        if named is not None:
            return FoundDefinition(named, f"by the name {word!r}")
    if len(definitions) == 1:
        return FoundDefinition(next(iter(definitions)), "the only one")
    written = f"({', '.join(entry.parameters)})" if entry.parameters is not None else ""
    if fitting:
        why = f"{len(fitting)} definitions take what {entry.symbol}{written} takes: {_some(fitting)}"
    else:
        why = f"no definition of the set takes what {entry.symbol}{written} takes"
    raise DataSetError(f"{why}; say which one is meant: --definition NAME")


def _find_python_kind(sources: Mapping[str, str]) -> SupportedLanguages:
    imported: set[str] = set()
    for path, text in sources.items():
        if PurePosixPath(path).suffix.lower() not in PYTHON:
            continue
        try:
            tree = parse_module(text)
        except ValueError:
            continue
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            imported |= {name.partition(".")[0] for name in names}
    return next((one for one in SupportedLanguages if one.record.package in imported), SupportedLanguages.PYTHON)


def _list_functions(path: str, source: str, *, strictly: bool = False) -> dict[str, tuple[str, ...] | None]:
    """Return the functions that may be the entry, each with the names of its parameters where they are known."""
    if PurePosixPath(path).suffix.lower() not in PYTHON:
        return _list_exports(source)
    try:
        body = parse_module(source).body
        is_run_bound = parse_reference(source).has_run
    except ValueError as error:
        if strictly:
            raise DataSetError(f"{path}: {error}") from None
        return {}
    functions = {
        node.name: _parameters(node)
        for node in body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not _is_kernel(node)
    }
    functions.pop(SETUP, None)
    return {ENTRY_NAME: None, **functions} if is_run_bound else functions


def _is_kernel(function: ast.FunctionDef) -> bool:
    """Tell whether a decorator makes a function of a device of it, as `@triton.jit` does."""
    return any(
        ast.unparse(decorator).partition("(")[0].endswith(("jit", "prim_func")) for decorator in function.decorator_list
    )


def _parameters(function: ast.FunctionDef) -> tuple[str, ...] | None:
    arguments = function.args
    if arguments.vararg is not None or arguments.kwarg is not None:
        return None
    return tuple(argument.arg for argument in (*arguments.posonlyargs, *arguments.args))


def _list_exports(source: str) -> dict[str, tuple[str, ...] | None]:
    text = COMMENT.sub(" ", source)
    names = [first or second for first, second in TVM_FFI_EXPORT.findall(text)] + MODULE_FUNCTION.findall(text)
    behind = {first or second: function for first, second, function in EXPORTED_AS.findall(text)}
    return {name: _parameters_in_c(behind.get(name), text) for name in names}


def _parameters_in_c(function: str | None, text: str) -> tuple[str, ...] | None:
    if function is None:
        return None
    found = re.search(rf"\b{re.escape(function.rpartition('::')[2])}\s*\(([^(){{}};]*)\)\s*\{{", text)
    if found is None or not found[1].strip():
        return None
    last = [LAST_WORD.search(part.strip()) for part in found[1].split(",")]
    return tuple(word[1] for word in last if word is not None)


def _takes(parameters: tuple[str, ...] | None, definition: Definition) -> bool:
    """Tell whether parameters have the names of a definition's inputs, or of its inputs and outputs."""
    inputs, outputs = tuple(definition.inputs), tuple(definition.outputs)
    return parameters is not None and parameters in (inputs, (*inputs, *outputs))


def _named_by(word: str, names: Iterable[str]) -> str | None:
    """Return the longest name that a file's or folder's name has in it; None where there is none, or several."""
    plain = _plain(word)
    found = [name for name in names if _plain(name) == plain or (len(name) >= LEAST_NAME and _plain(name) in plain)]
    longest = [name for name in found if len(name) == max(map(len, found))]
    return longest[0] if len(longest) == 1 else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower())


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return f"{', '.join(listed[:SHOWN])}{more}" or "none"
