"""Makes a solution from a local source: a source file, a folder with or without a manifest, or a packed file.

Missing information is detected: the language by file suffixes and imports, the entry function by its name, and the
definition by parameters and names. No source is run. A failed detection refuses the draft. The message names the flag
that gives the information.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from pydantic import ValidationError

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.data.adapted import ENGINES, find_by_file, find_engine, make_solution, takes
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.entry import COMMENT, SETUP, check_entry, list_exports
from flashinfer_bench.data.json_utils import load_json_file
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.reference import ENTRY_NAME, ModuleMetadata, read_module
from flashinfer_bench.data.solution import BuildSpec, Solution, SourceFile, SupportedLanguages
from flashinfer_bench.data.store.dialects import MOST_SOURCE_BYTES
from flashinfer_bench.data.store.pack import MANIFEST_NAMES, pack_folder, read_sources
from flashinfer_bench.errors import DataSetError

SOURCE_SUFFIXES: Final = frozenset(suffix for one in SupportedLanguages for suffix in one.record.suffixes)
AUTHOR: Final = "me"
"""The default author of a draft."""
DRAFT_DESCRIPTION: Final = "edited by hand; `run --solution` writes it anew"
"""The description of each draft in a set. A draft overwrites only solutions with this description."""
NAMED_FOLDERS: Final = 2
"""Number of folders around a file whose names may contain the definition's name."""
LEAST_NAME: Final = 4
"""Minimum characters of a definition's name that is searched within a file's name."""
SHOWN: Final = 8
FUNCTION_IN_C: Final = re.compile(r"\w\s*\(([^(){};]+)\)\s*\{")
INCLUDED: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"](\w+)/', re.MULTILINE)
"""An include of a header, with the header's folder."""
LEADERBOARD: Final = re.compile(r"^#!POPCORN\s+leaderboard\s+(\S+)", re.MULTILINE)
"""A line in which a submission to GPU MODE names its problem."""
LAST_WORD: Final = re.compile(r"(\w+)\s*(?:=[^,]*)?(?:,|$)")

Signatures = set[tuple[str, ...]]
"""The possible parameters of a draft's entry function; empty if the source does not show the parameters."""


@dataclass(frozen=True)
class DraftHints:
    """The user's hints about a draft. Missing hints are detected."""

    definition: str | None = None
    entry: str | None = None
    """FILE::FUNCTION, or only the function."""
    language: str | None = None
    author: str = AUTHOR


class Draft(NamedTuple):
    """A solution made from a local source."""

    solution: Solution
    path: Path
    found: str
    """The detected properties, as a line for people."""
    is_packed: bool
    """Whether all properties come from a manifest or a packed file."""


def is_kept_draft(solution: Solution) -> bool:
    """Return whether a solution of a set was made from a draft."""
    return solution.description == DRAFT_DESCRIPTION


def is_draft_path(text: str) -> bool:
    """Return whether a text is the path of a draft, and not the name of a solution."""
    path = Path(text)
    is_source = path.suffix.lower() in {*SOURCE_SUFFIXES, ".json"} or (path.suffix != "" and path.is_file())
    return "/" in text or is_source or (text != "" and path.is_dir())


def read_draft(path: Path, definitions: Mapping[str, Definition], hints: DraftHints | None = None) -> Draft:
    """Read a draft, and detect its missing properties.

    Args:
        path: a source file, a folder, or a packed solution.
        definitions: the possible definitions, by name.
        hints: the properties that the flags of a command give: `DraftHints(definition=NAME)` is `--definition NAME`.

    Raises:
        DataSetError: the draft cannot be read, or a property cannot be detected.
    """
    hints = hints or DraftHints()
    if any((path / name).exists() for name in MANIFEST_NAMES):
        return _take_whole(pack_folder(path).solution, path, definitions, hints)
    if path.is_dir():
        sources, problems = read_sources(path)
        if problems or not sources:
            raise DataSetError("\n".join(problems) or f"{path}: there is no source file in it")
        return _make(path, sources, definitions, hints)
    if not path.exists():
        beside = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataSetError(f"{path}: there is no such file{did_you_mean(path.name, beside)}")
    if path.suffix.lower() == ".json":
        return _take_whole(load_json_file(Solution, path), path, definitions, hints)
    try:
        text = read_whole(path, MOST_SOURCE_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataSetError(f"{path} cannot be read as a source: {error}") from None
    return _make(path, {path.name: text}, definitions, hints)


def _take_whole(solution: Solution, path: Path, definitions: Mapping[str, Definition], hints: DraftHints) -> Draft:
    """Return the draft of a complete solution, which needs no detection."""
    used = [flag for flag in ("entry", "language") if getattr(hints, flag) is not None]
    if used:
        raise DataSetError(f"{path} sets this itself, so --{used[0]} is refused; edit it there")
    if hints.definition not in (None, solution.definition):
        raise DataSetError(f"{path} is a solution of {solution.definition}, not of {hints.definition}")
    _check_name(solution.definition, definitions)
    return Draft(solution, path, f"{path}: {solution.name} of {solution.definition}", True)


def _check_name(definition: str, definitions: Mapping[str, Definition]) -> None:
    if definition not in definitions:
        raise DataSetError(f"the trace set has no definition {definition!r}{did_you_mean(definition, definitions)}")


def _make(path: Path, sources: dict[str, str], definitions: Mapping[str, Definition], hints: DraftHints) -> Draft:
    given_file, _, named = (hints.entry or "").replace("\\", "/").rpartition("::")
    language = _choose_language(path, sources, hints.language)
    absolute = path.absolute()
    words = [absolute.stem if path.is_file() else absolute.name]
    words += [folder.name for folder in list(absolute.parents)[:NAMED_FOLDERS]]
    engine = next(filter(None, map(find_engine, sources.keys(), sources.values())), None)
    if hints.entry is None and engine is not None:
        symbol = ENGINES[engine][0]
        leaderboards = LEADERBOARD.findall("\n".join(sources.values()))
        runs = [
            signatures
            for file, text in sources.items()
            for name, signatures in _list_functions(file, text).items()
            if name in (ENTRY_NAME, PurePosixPath(file).stem) and name != symbol
        ]
        taking = [name for name, item in definitions.items() if takes(item, engine)]
        possible = definitions if runs else taking  # a file with `run` may be for any definition
        chosen = hints.definition or find_by_file(words, definitions) or _named_by([*leaderboards, *words], possible)[0]
        if chosen != hints.definition and chosen not in taking:
            chosen, _ = _find_definition(symbol, set().union(*runs), words, definitions)
        _check_name(chosen, definitions)
        if not runs or chosen in taking:
            made = make_solution(words[0], hints.author, sources, definitions[chosen], language)
            solution = made.model_copy(update={"description": DRAFT_DESCRIPTION})
            return Draft(solution, path, f"{path}: {language.value}, {symbol}, of {chosen}", False)
    entry_file = given_file or _find_entry_file(language, sources)
    if entry_file not in sources:
        raise DataSetError(f"--entry: {path} has no source {entry_file!r}{did_you_mean(entry_file, sources)}")
    symbol, signatures = _find_entry(entry_file, sources[entry_file], named)
    definition, reason = hints.definition, "as given"
    if definition is None:
        definition, reason = _find_definition(symbol, signatures, words, definitions)
    _check_name(definition, definitions)
    try:
        solution = Solution(
            name=words[0],
            definition=definition,
            author=hints.author,
            description=DRAFT_DESCRIPTION,
            sources=[SourceFile(path=name, content=text) for name, text in sources.items()],
            spec=BuildSpec(language=language, target_hardware=["any"], entry_point=f"{entry_file}::{symbol}"),
        )
    except ValidationError as error:
        raise DataSetError(f"{path} makes no solution: {error}") from None
    if hints.entry and (problems := check_entry(solution)):
        raise DataSetError(f"--entry: {problems[0]}")
    reported = f"{path}: {language.value}, {solution.spec.entry_point}, of {definition} ({reason})"
    return Draft(solution, path, reported, False)


def _choose_language(path: Path, sources: Mapping[str, str], given: str | None) -> SupportedLanguages:
    known = [language.value for language in SupportedLanguages]
    if given is not None and given not in known:
        raise DataSetError(f"--language: {given!r} is not among {', '.join(known)}")
    found = SupportedLanguages(given) if given is not None else find_language(sources)
    if found is None:
        endings = ", ".join(sorted(SOURCE_SUFFIXES))
        raise DataSetError(f"{path}: no source file ({endings}) shows the language; name it: --language NAME")
    return found


def find_language(sources: Mapping[str, str]) -> SupportedLanguages | None:
    """Return the language of sources, by suffixes, imports and headers; None if no file shows the language."""
    suffixes = set(map(_suffix, sources))
    found = [one for one in SupportedLanguages if suffixes.intersection(one.record.suffixes)]
    if SupportedLanguages.PYTHON not in found:
        own = {path.partition("/")[0] for path in sources}
        included = {folder for text in sources.values() for folder in INCLUDED.findall(text)} - own
        by_header = [one for one in found if included.intersection(one.record.headers)]
        return next(reversed(by_header or found), None)  # CUDA and C++ sources together are a CUDA solution
    packages = {package for path, text in sources.items() if _is_python(path) for package in _read(text).packages}
    return next((one for one in SupportedLanguages if one.record.package in packages), SupportedLanguages.PYTHON)


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _is_python(path: str) -> bool:
    return _suffix(path) in SupportedLanguages.PYTHON.record.suffixes


def _read(text: str) -> ModuleMetadata:
    try:
        return read_module(text)
    except ValueError:
        return ModuleMetadata({}, [], {}, frozenset())


def _find_entry_file(language: SupportedLanguages, sources: Mapping[str, str]) -> str:
    """Return the path of the file with the entry function.

    Raises:
        DataSetError: no file, or more than one file, may have the function.
    """
    wanted = {*language.record.suffixes}
    if language.record.requires_cuda:
        wanted |= {*SupportedLanguages.CPP.record.suffixes}
    fitting = [path for path in sources if _suffix(path) in wanted]
    if not fitting:
        raise DataSetError(f"no source of a {language.value} solution: there is {_some(sources)}")
    running = [path for path in fitting if ENTRY_NAME in _list_functions(path, sources[path])]
    if len(fitting) > 1 and len(running) != 1:
        raise DataSetError(f"several files may have the entry function: {_some(fitting)}; name one: --entry FILE::NAME")
    return (running or fitting)[0]


def _find_entry(path: str, source: str, symbol: str) -> tuple[str, Signatures]:
    """Return the entry function of a file: the given function, else `run`, else the file's name, else the only
    function.

    Raises:
        DataSetError: the file cannot be parsed, or several functions are possible.
    """
    try:
        if _is_python(path):
            read_module(source)
    except ValueError as error:
        raise DataSetError(f"{path}: {error}") from None
    functions = _list_functions(path, source)
    named = [name for name in (symbol, ENTRY_NAME, PurePosixPath(path).stem) if name in functions]
    if not symbol and not named and len(functions) > 1:
        raise DataSetError(f"{path}: several functions are possible: {_some(functions)}; name one: --entry NAME")
    chosen = symbol or next(iter([*named, *functions]), ENTRY_NAME)
    return chosen, functions.get(chosen, set())


def _list_functions(path: str, source: str) -> dict[str, Signatures]:
    """Return the possible entry functions, with their parameters. In C++, all functions of a file share the possible
    parameters."""
    if not _is_python(path):
        text = COMMENT.sub(" ", source)
        signatures = {tuple(LAST_WORD.findall(found)) for found in FUNCTION_IN_C.findall(text)}
        return dict.fromkeys(list_exports(text), signatures)
    module = _read(source)
    public = [name for name in module.functions if not name.startswith("_") and name != SETUP]
    names = [ENTRY_NAME, *public] if ENTRY_NAME in module.names else public
    return {name: _parameters_of(module.signatures.get(name)) for name in names}


def _parameters_of(signature: Signature | None) -> Signatures:
    parameters = list(signature.parameters.values()) if signature is not None else []
    kinds = {one.kind for one in parameters}
    if signature is None or kinds & {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}:
        return set()
    return {tuple(one.name for one in parameters if one.kind is not Parameter.KEYWORD_ONLY)}


def _find_definition(
    entry: str, signatures: Signatures, words: Sequence[str], definitions: Mapping[str, Definition]
) -> tuple[str, str]:
    """Return a definition and the reason for the choice. The choice depends on the parameters, then on a word that
    contains the definition's name. If both fail, the only definition of the set is chosen.

    Args:
        entry: name of the entry function, for messages.
        signatures: parameters of the entry function.
        words: the name of the file, then the names of the folders around the file, the innermost first.
        definitions: the definitions of the set, by name.

    Raises:
        DataSetError: no definition matches, or several match.
    """
    fitting = [
        name
        for name, item in definitions.items()
        if signatures.intersection([tuple(item.inputs), (*item.inputs, *item.outputs)])
    ]
    if len(fitting) == 1:
        return fitting[0], "by its parameters"
    named, word = _named_by(words, fitting or definitions)
    if named:
        return named, f"by the name {word!r}"
    if len(definitions) == 1:
        return next(iter(definitions)), "the only one"
    why = f"no definition of the set has the parameters of {entry}"
    if fitting:
        why = f"{len(fitting)} definitions have the parameters of {entry}: {_some(fitting)}"
    raise DataSetError(f"{why}; name the definition: --definition NAME")


def _named_by(words: Sequence[str], names: Iterable[str]) -> tuple[str, str]:
    """Return the longest definition name in the first word that contains one, and the word; two empty texts without a
    match. A word with two longest names is skipped."""
    for word in words:
        plain = _plain(word)
        found = [name for name in names if _plain(name) == plain or (len(name) >= LEAST_NAME and _plain(name) in plain)]
        longest = [name for name in found if len(name) == max(map(len, found))]
        if len(longest) == 1:
            return longest[0], word
    return "", ""


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower())


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return f"{', '.join(listed[:SHOWN])}{more}" or "none"
