"""Reading a whole set: walk the four folders, keep what is right, gather an issue for what is not.

A root of another layout has loose definitions (`loose.py`), whose files are read beside those of the four folders.

The fields inside the files count; the folders are only compared with them. What belongs to an unknown definition is
kept with a warning, since another set that is given beside this one may have the definition.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.names import HintLimit, did_you_mean
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.checks import check_workload
from flashinfer_bench.data.store.claims_to_names import Filed, Named, settle_definitions, settle_solutions
from flashinfer_bench.data.store.issue_groups import join_alike, join_all
from flashinfer_bench.data.store.jsonl import read_lines
from flashinfer_bench.data.store.loose import LooseDefinition, find_loose
from flashinfer_bench.data.store.parse import FileIssues, Place, parse_line, parse_objects
from flashinfer_bench.data.store.trace_lines import AnyTrace, read_trace_line, to_trace
from flashinfer_bench.data.store.trace_list import TraceList
from flashinfer_bench.data.store.variants.beside import USUAL_OP_TYPE, Spot
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import DataSetError


@dataclass
class FoundFiles:
    """What the files of one root hold, and what is wrong with them."""

    root: Path
    loose: list[LooseDefinition] = field(default_factory=list)
    """What lies in another layout than ours."""
    definitions: dict[str, Definition] = field(default_factory=dict)
    solutions: dict[str, list[Solution]] = field(default_factory=dict)
    workloads: dict[str, list[Trace]] = field(default_factory=dict)
    traces: dict[str, TraceList] = field(default_factory=dict)
    definition_files: dict[str, Path] = field(default_factory=dict)
    """Definition name to its file."""
    solution_files: dict[str, Path] = field(default_factory=dict)
    """Solution name to its file."""
    authors: dict[str, str] = field(default_factory=dict)
    """Solution name to its author."""
    issues: list[LoadIssue] = field(default_factory=list)
    broken: frozenset[str] = frozenset()
    """Names of the files of definitions that cannot be used: who needs one of them is not told of once more."""

    meant: dict[str, str] = field(default_factory=dict)
    """Name of a definition that is not there to the hint which one may be meant."""
    hints: HintLimit = field(default_factory=HintLimit)
    """Of these hints."""

    def leave_out(self, path: Path, reason: str) -> None:
        """Take note of something on the disk that is not read."""
        self.issues.append(LoadIssue("error", path, None, None, reason, is_about_place=True))


def read_files(root: Path) -> FoundFiles:
    """Read every file of a set.

    Raises:
        DataSetError: the root is not there, is no folder, or cannot be read.
    """
    try:
        with os.scandir(root):
            pass
    except OSError as error:
        known = {FileNotFoundError: "does not exist", NotADirectoryError: "is not a folder"}
        what = known.get(type(error), f"cannot be read: {error.strerror}")
        raise DataSetError(f"trace set {str(root)!r} {what}; give the folder that holds definitions/") from error
    found = FoundFiles(root, find_loose(root))
    with collector_paused():
        _read_definitions(found)
        found.broken = layout.definition_names(root, (one.file for one in found.issues if one.severity == "error"))
        _read_solutions(found)
        _read_workloads(found)
        _read_traces(found)
    found.issues = join_all(found.issues, lambda file: _is_outside(file, root))
    if not found.definitions and not found.broken:
        found.issues.append(LoadIssue("warning", root, None, None, _describe_empty(root), missing_definition=""))
    return found


def _is_outside(file: Path, root: Path) -> bool:
    """Tell whether a file lies outside our layout: each of these has one issue at most."""
    below = file.relative_to(root).parts if file.is_relative_to(root) else ()
    return bool(below) and below[0] not in layout.FOLDERS


def _describe_empty(root: Path) -> str:
    nested = sorted(folder.parent.name for folder in root.glob(f"*/{layout.DEFINITIONS}") if folder.is_dir())
    hint = f"; did you mean {str(root / nested[0])!r}?" if nested else ""
    return f"the set has no definitions ({layout.DEFINITIONS}/<op_type>/<definition>.json){hint}"


def _read_definitions(found: FoundFiles) -> None:
    folder = found.root / layout.DEFINITIONS
    files = layout.find_files(folder, (".json",), found.leave_out)
    spots = [Spot(file, _op_type_of(file, folder)) for file in files]
    spots += [Spot(loose.definition, loose.op_type) for loose in found.loose]
    read = []
    for filed in _read_objects(Definition, spots, found):
        read.append(filed)
        if filed.model.not_runnable_reason is not None:
            reason = f"kept, but nothing is judged against it: {filed.model.not_runnable_reason}"
            found.issues.append(filed.place.issue("warning", reason, ("reference",)))

    def is_in_place(filed: Filed[Definition]) -> bool:
        return _describe_place(filed.file, folder, (filed.model.name, filed.model.op_type)) is None

    for filed in settle_definitions(read, is_in_place, found.issues):
        definition, file = filed.model, filed.file
        found.definitions[definition.name] = definition
        found.definition_files[definition.name] = file
        _compare_place(found, file, folder, (definition.name, definition.op_type))


def _op_type_of(file: Path, folder: Path) -> str:
    """Return the op type that a file's place says: the folder that it lies in, below `definitions/`."""
    return file.parent.name if file.parent != folder else USUAL_OP_TYPE


def _read_objects(model: type[Named], spots: Iterable[Spot], found: FoundFiles) -> Iterator[Filed[Named]]:
    for spot in spots:
        for read, place in parse_objects(model, spot.file, found.issues, spot):
            yield Filed(read, place, spot.file)


def _name_definitions(found: FoundFiles) -> dict[Path, str]:
    """Return the file of each definition that was read, with the definition's name."""
    return {file: name for name, file in found.definition_files.items()}


def _read_solutions(found: FoundFiles) -> None:
    folder = found.root / layout.SOLUTIONS
    names = _name_definitions(found)
    of_problems = {file: names.get(loose.definition) for loose in found.loose for file in loose.solutions}
    files = layout.find_files(folder, (".json",), found.leave_out)  # of one problem's folder, its own are there, too
    spots = [Spot(file) for file in files if file not in of_problems]
    spots += [Spot(file, definition=definition) for file, definition in of_problems.items()]
    read = _with_own_names(list(_read_objects(Solution, spots, found)), found)

    def is_in_place(filed: Filed[Solution]) -> bool:
        if filed.file in of_problems:
            return True
        return layout.is_of_author(filed.file, folder, author=filed.model.author, name=filed.model.name)

    for filed in settle_solutions(read, is_in_place, found.issues):
        solution, place, file = filed.model, filed.place, filed.file
        found.solutions.setdefault(solution.definition, []).append(solution)
        found.solution_files[solution.name] = file
        found.authors[solution.name] = solution.author
        if not solution.get_entry_source().content.strip():
            path = solution.get_entry_path()
            found.issues.append(place.issue("warning", f"the source of the entry point, {path}, is empty"))
        if solution.definition not in found.definitions:
            _warn_of_missing(found, place, solution.definition, f"solution {solution.name!r}")
        elif file not in of_problems:
            _compare_place(found, file, folder, _names_above(found, solution))


def _with_own_names(read: list[Filed[Solution]], found: FoundFiles) -> list[Filed[Solution]]:
    """Tell apart solutions of loose definitions: each folder may have one of the same name."""
    definitions: dict[str, set[str]] = {}
    for filed in read:
        definitions.setdefault(filed.model.name, set()).add(filed.model.definition)
    named = []
    for filed in read:
        name = filed.model.name
        if len(definitions[name]) == 1 or not _is_outside(filed.file, found.root):
            named.append(filed)
            continue
        own = f"{filed.model.definition}.{name}"
        found.issues.append(filed.place.issue("warning", f"others have the name {name!r}; this one counts as {own!r}"))
        named.append(replace(filed, model=filed.model.model_copy(update={"name": own})))
    return named


def _names_above(found: FoundFiles, solution: Solution) -> tuple[str, ...]:
    """Return the names of a solution's file and of the folders around it, innermost first, as far as they are known."""
    definition = found.definitions.get(solution.definition)
    names = (solution.name, solution.definition)
    return (*names, definition.op_type, solution.author) if definition is not None else names


def _read_workloads(found: FoundFiles) -> None:
    folder = found.root / layout.WORKLOADS
    spots = [Spot(file) for file in layout.find_files(folder, (".jsonl", ".json"), found.leave_out)]
    names = _name_definitions(found)
    for loose in found.loose:
        name = names.get(loose.definition, loose.definition.parent.name)
        spots += [Spot(file, definition=name, root=found.root) for file in loose.workloads]
    seen: dict[tuple[str, str], tuple[Workload, Path]] = {}
    for spot in spots:
        start = len(found.issues)
        told = _NamesOfFile(found, spot.file, folder)
        hints = HintLimit()
        for trace, place in _read_trace_file(spot, found.issues):
            with hints:
                workload = _accept_workload(found, to_trace(trace), place, seen)
            if workload is not None:
                found.workloads.setdefault(workload.definition, []).append(workload)
                told.note(workload, place)
        join_alike(found.issues, start)
        told.report("workloads")


def _accept_workload(
    found: FoundFiles, trace: Trace, place: Place, seen: dict[tuple[str, str], tuple[Workload, Path]]
) -> Trace | None:
    """Check a workload against its definition and those before it; None, with issues, when it is left out."""
    if not trace.is_workload_trace():
        found.issues.append(place.issue("warning", "has an evaluation, which a workload has not; it is dropped"))
        trace = Trace(definition=trace.definition, workload=trace.workload)
    key = (trace.definition, trace.workload.uuid)
    if key in seen:
        found.issues.append(_describe_repeated(trace, place, *seen[key]))
        return None
    definition = found.definitions.get(trace.definition)
    findings = check_workload(definition, trace.workload) if definition is not None else []
    found.issues.extend(place.issue("error", reason, steps) for steps, reason in findings)
    if findings:
        return None
    seen[key] = (trace.workload, place.file)
    return trace


def _describe_repeated(trace: Trace, place: Place, known: Workload, first: Path) -> LoadIssue:
    uuid = trace.workload.uuid
    if trace.workload.digest() == known.digest():
        return place.issue("warning", f"workload {uuid} stands twice, first in {first}; once is enough", ("workload",))
    reason = f"uuid {uuid} belongs to another workload of {trace.definition}, in {first}; this one is left out"
    return place.issue("error", reason, ("workload", "uuid"))


def _read_traces(found: FoundFiles) -> None:
    folder = found.root / layout.TRACES
    kept: defaultdict[str, list[AnyTrace]] = defaultdict(list)
    for file in layout.find_files(folder, (".jsonl", ".json"), found.leave_out):
        start = len(found.issues)
        names = _NamesOfFile(found, file, folder)
        for trace, place in _read_trace_file(Spot(file), found.issues, keeps_lines=True):
            if trace.solution is None:
                found.issues.append(place.issue("error", f"has no evaluation; workloads stand in {layout.WORKLOADS}/"))
                continue
            kept[trace.definition].append(trace)
            names.note(trace, place)
        join_alike(found.issues, start)
        names.report("traces")
    found.traces = {name: TraceList.of(traces) for name, traces in kept.items()}


class _NamesOfFile:
    """The definitions that the lines of one file name: each is looked at once, however many lines there are."""

    def __init__(self, found: FoundFiles, file: Path, folder: Path) -> None:
        self._found = found
        self._file = file
        self._folder = folder
        self._first: dict[str, Place] = {}
        self._count: Counter[str] = Counter()

    def note(self, trace: AnyTrace, place: Place) -> None:
        """Take note of a line; compare the first line of each definition with the file's path."""
        name = trace.definition
        self._count[name] += 1
        if name in self._first:
            return
        self._first[name] = place
        definition = self._found.definitions.get(name)
        if definition is not None and self._file.suffix == ".jsonl" and self._file.is_relative_to(self._folder):
            author = self._found.authors.get(trace.solution or "")
            _compare_place(
                self._found, self._file, self._folder, (name, definition.op_type, *([author] if author else []))
            )

    def report(self, what: str) -> None:
        """Warn of each definition that the set does not have."""
        for name, place in self._first.items():
            if name not in self._found.definitions:
                count = self._count[name]
                _warn_of_missing(self._found, place, name, f"{count} {what if count > 1 else what[:-1]} of this file")


def _read_trace_file(
    spot: Spot, issues: list[LoadIssue], *, keeps_lines: bool = False
) -> Iterator[tuple[AnyTrace, Place]]:
    """Yield what a file holds, with its place; a line that can be kept as it is, if those are wanted.

    Of the kept lines of a definition only the first one has a place with its number: nobody asks for the others'.
    """
    file = spot.file
    if file.suffix == ".json":
        yield from parse_objects(Trace, file, issues, spot)
        return
    kept = FileIssues(file, issues)
    anywhere = Place(file, spot=spot)
    named: set[str] = set()
    try:
        for number, line, is_ended in read_lines(file):
            if keeps_lines and (kept_line := read_trace_line(line)) is not None:
                is_known = kept_line.definition in named
                named.add(kept_line.definition)
                yield kept_line, anywhere if is_known else Place(file, line=number, spot=spot)
                continue
            place = Place(file, line=number, spot=spot)
            before = len(issues)
            with kept.hints:
                trace = parse_line(Trace, line, place, issues)
            if trace is not None:
                yield trace, place
            elif not is_ended and issues[before].reason.startswith("not JSON"):
                del issues[before:]
                reason = "the last line was cut off in the middle; it is passed over, and moved aside at the next write"
                issues.append(place.issue("warning", reason))
            if kept.are_too_many(trace is None):
                return
    except OSError as error:
        issues.append(LoadIssue("error", file, None, None, f"cannot be read: {error.strerror}"))


def _warn_of_missing(found: FoundFiles, place: Place, name: str, what: str) -> None:
    if name in found.broken:
        return
    if name not in found.meant:
        with found.hints:
            found.meant[name] = did_you_mean(name, found.definitions)
    issue = place.issue("warning", f"{what}: definition {name!r} is not there{found.meant[name]}")
    found.issues.append(replace(issue, field="definition", missing_definition=name))


def _describe_place(file: Path, folder: Path, names: tuple[str, ...]) -> str | None:
    """Say what differs between a path and the names inside the file; nothing can where the file lies elsewhere."""
    return layout.check_place(file, folder, names) if file.is_relative_to(folder) else None


def _compare_place(found: FoundFiles, file: Path, folder: Path, names: tuple[str, ...]) -> None:
    reason = _describe_place(file, folder, names)
    if reason is not None:
        found.issues.append(LoadIssue("warning", file, None, None, reason, is_about_place=True))
