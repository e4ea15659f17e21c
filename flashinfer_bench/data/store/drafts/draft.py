"""Makes a solution of what somebody edits: a source file, a folder with or without a manifest, or a packed file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import ValidationError

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.trees import walk_files
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.entry import check_entry
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.json_utils import load_json_file
from flashinfer_bench.data.manifest import MANIFEST_NAMES, is_passed_over, sort_sources
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.solution import BuildSpec, Solution, SourceFile, SupportedLanguages
from flashinfer_bench.data.store.dialects import MOST_SOURCE_BYTES
from flashinfer_bench.data.store.drafts.guesses import (
    find_definition,
    find_entry,
    find_entry_file,
    find_language,
)
from flashinfer_bench.data.store.pack import pack_folder
from flashinfer_bench.errors import DataSetError

SOURCE_SUFFIXES: Final = frozenset(suffix for one in SupportedLanguages for suffix in one.record.suffixes)
AUTHOR: Final = "me"
"""The author of a draft, where nobody says another."""
ANY_HARDWARE: Final = "any"
MARK: Final = "edited by hand; `run --solution` writes it anew"
"""The description of a draft in a set. A solution without it is never overwritten by a draft."""
NAMED_FOLDERS: Final = 2
"""So many folders around a file may tell the definition by their names."""


@dataclass(frozen=True)
class DraftHints:
    """What somebody says of a draft; what is left out is found out."""

    definition: str | None = None
    definition_told_by: str = "as given"
    """What told the definition, for people."""
    entry: str | None = None
    """FILE::FUNCTION, or the function alone."""
    language: str | None = None
    author: str = AUTHOR


class Draft(NamedTuple):
    """A solution that was made of what somebody edits."""

    solution: Solution
    path: Path
    found: str
    """What was found out, as a line for people."""
    is_packed: bool
    """Whether a manifest or a packed file says it all."""


def is_kept_draft(solution: Solution) -> bool:
    """Tell whether a solution of a set was made of a file that somebody edits."""
    return solution.description == MARK


def is_draft_path(text: str) -> bool:
    """Tell whether a text is meant as the path of a draft, and not as the name of a solution."""
    path = Path(text)
    return (
        "/" in text or path.suffix.lower() in {*SOURCE_SUFFIXES, ".json"} or path.is_dir() or _is_file_with_ending(path)
    )


def _is_file_with_ending(path: Path) -> bool:
    return path.suffix != "" and path.is_file()


def read_draft(path: Path, definitions: Mapping[str, Definition], hints: DraftHints | None = None) -> Draft:
    """Read a draft, and find out what it does not say.

    Args:
        path: a source file, a folder, or a packed solution.
        definitions: those that it may be of, by name.
        hints: what somebody says of it.

    Raises:
        DataSetError: it cannot be read, or something of it cannot be found out.
    """
    hints = hints or DraftHints()
    if path.is_dir():
        if any((path / name).exists() for name in MANIFEST_NAMES):
            return _of_whole(pack_folder(path).solution, path, definitions, hints)
        return _make(path, _read_folder(path), definitions, hints)
    if not path.exists():
        beside = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
        beside = [name for name in beside if Path(name).suffix == path.suffix] or beside
        raise DataSetError(f"{path}: there is no such file{did_you_mean(path.name, beside)}")
    if path.suffix.lower() == ".json":
        return _of_whole(load_json_file(Solution, path), path, definitions, hints)
    return _make(path, {path.name: _read_text(path)}, definitions, hints)


def _of_whole(solution: Solution, path: Path, definitions: Mapping[str, Definition], hints: DraftHints) -> Draft:
    """Take a solution that says everything itself."""
    given = {"--entry": hints.entry, "--language": hints.language}
    used = [flag for flag, value in given.items() if value is not None]
    if used:
        raise DataSetError(f"{path} says itself what {' and '.join(used)} would say; edit it there")
    if hints.definition not in (None, solution.definition):
        raise DataSetError(f"{path} is a solution of {solution.definition}, not of {hints.definition}")
    if solution.definition not in definitions:
        hint = did_you_mean(solution.definition, definitions)
        raise DataSetError(f"{path}: the trace set has no definition {solution.definition!r}{hint}")
    return Draft(solution, path, f"{path}: {solution.name} of {solution.definition}", True)


def _make(path: Path, sources: dict[str, str], definitions: Mapping[str, Definition], hints: DraftHints) -> Draft:
    given_file, _, symbol = (hints.entry or "").replace("\\", "/").rpartition("::")
    language = _choose_language(path, sources, hints)
    entry_file = given_file or find_entry_file(language, sources)
    if entry_file not in sources:
        raise DataSetError(f"--entry: {path} has no source {entry_file!r}{did_you_mean(entry_file, sources)}")
    entry = find_entry(entry_file, sources[entry_file], symbol or None)
    absolute = path.absolute()
    words = [absolute.stem if path.is_file() else absolute.name]
    words += [folder.name for folder in list(absolute.parents)[:NAMED_FOLDERS]]
    definition = find_definition(entry, words, definitions, hints.definition)
    try:
        solution = Solution(
            name=words[0],
            definition=definition.name,
            author=hints.author,
            description=MARK,
            sources=[SourceFile(path=name, content=text) for name, text in sources.items()],
            spec=BuildSpec(
                language=language, target_hardware=[ANY_HARDWARE], entry_point=f"{entry_file}::{entry.symbol}"
            ),
        )
    except ValidationError as error:
        reasons = "; ".join(str(one["msg"]) for one in error.errors(include_url=False, include_input=False))
        raise DataSetError(f"{path} makes no solution: {reasons}") from None
    problems = check_entry(solution) if symbol else []
    if problems:
        raise DataSetError(f"--entry: {problems[0]}")
    told_by = definition.told_by if hints.definition is None else hints.definition_told_by
    told = f"{path}: {language.value}, {solution.spec.entry_point}, of {definition.name} ({told_by})"
    return Draft(solution, path, told, False)


def _choose_language(path: Path, sources: Mapping[str, str], hints: DraftHints) -> SupportedLanguages:
    known = [language.value for language in SupportedLanguages]
    if hints.language is not None:
        if hints.language not in known:
            raise DataSetError(f"--language: {hints.language!r} is none of {', '.join(known)}")
        return SupportedLanguages(hints.language)
    found = find_language(sources, sources)
    if found is None:
        endings = ", ".join(sorted(SOURCE_SUFFIXES))
        raise DataSetError(f"{path}: no source file ({endings}) tells the language; say it: --language NAME")
    return found


def _read_folder(folder: Path) -> dict[str, str]:
    issues: list[LoadIssue] = []

    def tell(path: Path, reason: str) -> None:
        issues.append(LoadIssue("error", path, None, None, reason))

    there = [path for path in walk_files(folder, tell, passes_over=is_passed_over) if path.is_file()]
    if issues:
        raise DataSetError("\n".join(map(str, issues)))
    names = sort_sources(path.relative_to(folder).as_posix() for path in there)
    if not names:
        raise DataSetError(f"{folder}: there is no source file in it")
    return {name: _read_text(folder / name) for name in names}


def _read_text(file: Path) -> str:
    try:
        return read_whole(file, MOST_SOURCE_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise DataSetError(f"{file} is not UTF-8, so it is no source") from None
    except (OSError, ValueError) as error:
        raise DataSetError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
