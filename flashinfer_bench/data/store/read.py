"""Reading a whole set: walk the four folders, keep what is right, gather an issue for what is not.

A root of another layout has loose definitions (`loose.py`), whose files are read beside those of the four folders.
The fields inside the files count; the folders are only compared with them. What belongs to an unknown definition is
kept with a warning, since another set that is given beside this one may have the definition.

Several files may claim one name. A file that lies where its content says beats one that does not. Of solutions the only
one counts that lies in its author's folder under its name, so that nobody displaces a rival; if several do, or none,
none counts. Of definitions that differ none counts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final, Generic, TypeVar

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.checks import check_workload
from flashinfer_bench.data.store.dialects import USUAL_OP_TYPE, Spot
from flashinfer_bench.data.store.jsonl import read_lines
from flashinfer_bench.data.store.loose import find_loose
from flashinfer_bench.data.store.parse import FileIssues, Place, parse_line, parse_objects
from flashinfer_bench.data.store.trace_lines import AnyTrace, TraceList, read_trace_line, to_trace
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import DataSetError

Named = TypeVar("Named", Definition, Solution)
FIELD_STEPS: Final = 2
"""Leading steps of a field that count: `workload.inputs.x` and `workload.inputs.y` are one kind of place."""
JOINED: Final = 8
"""An issue that stands for a whole file names this many different reasons."""


@dataclass(frozen=True)
class _Filed(Generic[Named]):
    """An object with a name, and where it stands."""

    model: Named
    place: Place


@dataclass
class FoundFiles:
    """What the files of one root hold, and what is wrong with them."""

    root: Path
    definitions: dict[str, Definition] = field(default_factory=dict)
    solutions: dict[str, list[Solution]] = field(default_factory=dict)
    workloads: dict[str, list[Trace]] = field(default_factory=dict)
    traces: dict[str, TraceList] = field(default_factory=dict)
    definition_files: dict[str, Path] = field(default_factory=dict)
    """Definition name to its file."""
    solution_files: dict[str, Path] = field(default_factory=dict)
    """Solution name to its file."""
    issues: list[LoadIssue] = field(default_factory=list)


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
    with collector_paused():
        return _Reader(root).read()


class _Reader:
    def __init__(self, root: Path) -> None:
        self.found = FoundFiles(root)
        self._issues = self.found.issues
        self._loose = find_loose(root)
        self._broken: frozenset[str] = frozenset()
        """Definitions whose files cannot be used: what needs one of them gets no issue of its own."""
        self._authors: dict[str, str] = {}
        self._meant = cache(lambda name: did_you_mean(name, self.found.definitions))

    def read(self) -> FoundFiles:
        """Read the four folders, and what lies loose."""
        found, root = self.found, self.found.root
        self._read_definitions()
        self._broken = layout.definition_names(root, (one.file for one in self._issues if one.severity == "error"))
        self._read_solutions()
        self._read_workloads()
        self._read_traces()
        found.issues = _join_by_file(self._issues, self._is_loose)
        if not found.definitions and not self._broken:
            nested = sorted(folder.parent.name for folder in root.glob(f"*/{layout.DEFINITIONS}") if folder.is_dir())
            hint = f"; did you mean {str(root / nested[0])!r}?" if nested else ""
            reason = f"the set has no definitions ({layout.DEFINITIONS}/<op_type>/<definition>.json){hint}"
            found.issues.append(LoadIssue("warning", root, None, None, reason, missing_definition=""))
        return found

    def _find_spots(self, folder: str, *suffixes: str) -> list[Spot]:
        def leave_out(path: Path, reason: str) -> None:
            self._issues.append(LoadIssue("error", path, None, None, reason, is_about_place=True))

        top = self.found.root / folder
        files = layout.find_files(top, suffixes, leave_out)
        return [Spot(file, file.parent.name if file.parent != top else USUAL_OP_TYPE) for file in files]

    def _is_loose(self, file: Path) -> bool:
        """Tell whether a file lies outside our layout: each of these has one issue at most."""
        root = self.found.root
        below = file.relative_to(root).parts if file.is_relative_to(root) else ()
        return bool(below) and below[0] not in layout.FOLDERS

    def _compare_place(self, file: Path, folder: str, names: tuple[str, ...]) -> None:
        top = self.found.root / folder
        reason = layout.check_place(file, top, names) if file.is_relative_to(top) else None
        if reason is not None:
            self._issues.append(LoadIssue("warning", file, None, None, reason, is_about_place=True))

    def _read_objects(self, model: type[Named], spots: Iterable[Spot]) -> list[_Filed[Named]]:
        return [_Filed(*one) for spot in spots for one in parse_objects(model, spot.file, self._issues, spot)]

    def _settle(
        self, read: Iterable[_Filed[Named]], is_in_place: Callable[[Named, Path], bool]
    ) -> Iterator[_Filed[Named]]:
        """Yield what counts of objects that may claim the same names, with an issue for each that does not."""
        groups: dict[str, list[_Filed[Named]]] = {}
        for filed in read:
            groups.setdefault(filed.model.name, []).append(filed)
        for name, group in groups.items():
            kind = type(group[0].model).__name__.lower()
            kept = group if len(group) == 1 else [one for one in group if is_in_place(one.model, one.place.file)]
            where = "each in the folder of its author" if kept else "none in its author's folder under its name"
            if kind == "definition":
                kept = kept or group
                kept = kept[:1] if all(one.model == kept[0].model for one in kept) else kept
                where = "and they differ"
            reason = f"{kind} {name!r} is in {' and '.join(str(one.place.file) for one in group)}, {where}"
            reason += "; none is used until one is left"
            if len(kept) == 1:
                yield kept[0]
                reason = f"{kind} {name!r} is in {kept[0].place.file} already; names are unique, this one is left out"
            wrong = [one for one in group if len(kept) != 1 or one is not kept[0]]
            self._issues += [one.place.issue("error", reason) for one in wrong]

    def _read_definitions(self) -> None:
        found, folder = self.found, layout.DEFINITIONS
        spots = self._find_spots(folder, ".json") + [Spot(one.definition, one.op_type) for one in self._loose]
        read = self._read_objects(Definition, spots)
        for filed in read:
            if filed.model.not_runnable_reason is not None:
                reason = f"kept, but nothing is judged against it: {filed.model.not_runnable_reason}"
                self._issues.append(filed.place.issue("warning", reason, ("reference",)))

        def is_in_place(definition: Definition, file: Path) -> bool:
            top, names = found.root / folder, (definition.name, definition.op_type)
            return not file.is_relative_to(top) or layout.check_place(file, top, names) is None

        for filed in self._settle(read, is_in_place):
            definition, file = filed.model, filed.place.file
            found.definitions[definition.name] = definition
            found.definition_files[definition.name] = file
            self._compare_place(file, folder, (definition.name, definition.op_type))

    def _read_solutions(self) -> None:
        found, folder = self.found, layout.SOLUTIONS
        names = {file: name for name, file in found.definition_files.items()}
        of_problems = {file: names.get(one.definition) for one in self._loose for file in one.solutions}
        spots = [spot for spot in self._find_spots(folder, ".json") if spot.file not in of_problems]
        spots += [Spot(file, definition=definition) for file, definition in of_problems.items()]

        def is_in_place(solution: Solution, file: Path) -> bool:
            names = {"author": solution.author, "name": solution.name}
            return file in of_problems or layout.is_of_author(file, found.root / folder, **names)

        for filed in self._settle(self._with_own_names(self._read_objects(Solution, spots)), is_in_place):
            solution, place = filed.model, filed.place
            found.solutions.setdefault(solution.definition, []).append(solution)
            found.solution_files[solution.name] = place.file
            self._authors[solution.name] = solution.author
            if not solution.get_entry_source().content.strip():
                path = solution.get_entry_path()
                self._issues.append(place.issue("warning", f"the source of the entry point, {path}, is empty"))
            definition = found.definitions.get(solution.definition)
            if definition is None:
                self._warn_of_missing(place, solution.definition, f"solution {solution.name!r}")
            elif place.file not in of_problems:
                above = (solution.name, definition.name, definition.op_type, solution.author)
                self._compare_place(place.file, folder, above)

    def _with_own_names(self, read: list[_Filed[Solution]]) -> Iterator[_Filed[Solution]]:
        """Tell apart solutions of loose definitions: each folder may have one of the same name."""
        definitions: dict[str, set[str]] = {}
        for filed in read:
            definitions.setdefault(filed.model.name, set()).add(filed.model.definition)
        for filed in read:
            name = filed.model.name
            if len(definitions[name]) > 1 and self._is_loose(filed.place.file):
                own = f"{filed.model.definition}.{name}"
                reason = f"others have the name {name!r}; this one counts as {own!r}"
                self._issues.append(filed.place.issue("warning", reason))
                filed = replace(filed, model=filed.model.model_copy(update={"name": own}))
            yield filed

    def _read_workloads(self) -> None:
        found, seen = self.found, dict[tuple[str, str], tuple[Workload, Path]]()
        spots = self._find_spots(layout.WORKLOADS, ".jsonl", ".json")
        names = {file: name for name, file in found.definition_files.items()}
        for loose in self._loose:
            name = names.get(loose.definition, loose.definition.parent.name)
            spots += [Spot(file, definition=name, root=found.root) for file in loose.workloads]

        def accept(trace: AnyTrace, place: Place) -> bool:
            workload = self._accept_workload(to_trace(trace), place, seen)
            if workload is not None:
                found.workloads.setdefault(workload.definition, []).append(workload)
            return workload is not None

        for spot in spots:
            self._read_lines(spot, layout.WORKLOADS, accept)

    def _accept_workload(
        self, trace: Trace, place: Place, seen: dict[tuple[str, str], tuple[Workload, Path]]
    ) -> Trace | None:
        """Check a workload against its definition and those before it; None, with issues, if it is left out."""
        name, workload = trace.definition, trace.workload
        if not trace.is_workload_trace():
            self._issues.append(place.issue("warning", "has an evaluation, which a workload has not; it is dropped"))
            trace = Trace(definition=name, workload=workload)
        if (name, workload.uuid) in seen:
            known, first = seen[name, workload.uuid]
            if workload.digest() == known.digest():
                reason = f"workload {workload.uuid} stands twice, first in {first}; once is enough"
                self._issues.append(place.issue("warning", reason, ("workload",)))
            else:
                reason = f"uuid {workload.uuid} belongs to another workload of {name}, in {first}; this one is left out"
                self._issues.append(place.issue("error", reason, ("workload", "uuid")))
            return None
        definition = self.found.definitions.get(name)
        findings = check_workload(definition, workload) if definition is not None else []
        self._issues.extend(place.issue("error", reason, steps) for steps, reason in findings)
        if findings:
            return None
        seen[name, workload.uuid] = workload, place.file
        return trace

    def _read_traces(self) -> None:
        kept: dict[str, list[AnyTrace]] = {}

        def accept(trace: AnyTrace, place: Place) -> bool:
            if trace.solution is None:
                reason = f"has no evaluation; workloads stand in {layout.WORKLOADS}/"
                self._issues.append(place.issue("error", reason))
                return False
            kept.setdefault(trace.definition, []).append(trace)
            return True

        for spot in self._find_spots(layout.TRACES, ".jsonl", ".json"):
            self._read_lines(spot, layout.TRACES, accept)
        self.found.traces = {name: TraceList(traces) for name, traces in kept.items()}

    def _read_lines(self, spot: Spot, folder: str, accept: Callable[[AnyTrace, Place], bool]) -> None:
        """Read a file of lines; look once at each definition that lines name, however many lines there are."""
        start = len(self._issues)
        first: dict[str, Place] = {}
        count: Counter[str] = Counter()
        for trace, place in self._read_traces_of(spot, keeps_lines=folder == layout.TRACES):
            name = trace.definition
            if not accept(trace, place):
                continue
            count[name] += 1
            if name not in first:
                first[name] = place
                definition, author = self.found.definitions.get(name), self._authors.get(trace.solution or "")
                if definition is not None and spot.file.suffix == ".jsonl":
                    self._compare_place(
                        spot.file, folder, (name, definition.op_type, *([author] if author is not None else []))
                    )
        self._issues[start:] = _join_alike(self._issues[start:])
        for name, place in first.items():
            if name not in self.found.definitions:
                what = folder if count[name] > 1 else folder[:-1]
                self._warn_of_missing(place, name, f"{count[name]} {what} of this file")

    def _read_traces_of(self, spot: Spot, *, keeps_lines: bool) -> Iterator[tuple[AnyTrace, Place]]:
        """Yield what a file holds, with its place; a line that can be kept as it is, if lines are wanted."""
        file, issues = spot.file, self._issues
        if file.suffix == ".json":
            yield from parse_objects(Trace, file, issues, spot)
            return
        kept = FileIssues(file, issues)
        try:
            for number, line, is_ended in read_lines(file):
                place = Place(file, number, spot)
                trace: AnyTrace | None = read_trace_line(line) if keeps_lines else None
                before = len(issues)
                trace = trace or parse_line(Trace, line, place, issues)
                if trace is not None:
                    yield trace, place
                elif not is_ended and issues[before].reason.startswith("not JSON"):
                    reason = (
                        "the last line was cut off in the middle; it is passed over, and moved aside at the next write"
                    )
                    issues[before:] = [place.issue("warning", reason)]
                if kept.are_too_many(trace is None):
                    return
        except OSError as error:
            issues.append(LoadIssue("error", file, None, None, f"cannot be read: {error.strerror}"))

    def _warn_of_missing(self, place: Place, name: str, what: str) -> None:
        if name not in self._broken:
            issue = place.issue("warning", f"{what}: definition {name!r} is not there{self._meant(name)}")
            self._issues.append(replace(issue, field="definition", missing_definition=name))


def _join_alike(issues: list[LoadIssue]) -> list[LoadIssue]:
    """Join issues of a file's lines if reason and kind of place are the same; the first place stays."""
    groups: dict[tuple[object, ...], list[LoadIssue]] = {}
    for issue in issues:
        place = ".".join(issue.field.split(".")[:FIELD_STEPS]) if issue.field else None
        groups.setdefault((issue.severity, issue.file, issue.reason, place), []).append(issue)
    joined = []
    for first, *others in groups.values():
        lines = len({issue.line for issue in (first, *others)})
        more = f" (so in {lines} lines of this file)" if lines > 1 else ""
        joined.append(replace(first, reason=first.reason + more))
    return joined


def _join_by_file(issues: list[LoadIssue], is_joined: Callable[[Path], bool]) -> list[LoadIssue]:
    """Make one issue of all those of a file: as severe as the worst of them, with its place."""
    groups: dict[Path | int, list[LoadIssue]] = {}
    for number, issue in enumerate(issues):
        groups.setdefault(issue.file if is_joined(issue.file) else number, []).append(issue)
    joined = []
    for group in groups.values():
        worst = min(group, key=lambda issue: issue.severity != "error")
        others = [issue for issue in group if issue is not worst]
        plain = {worst.field, None}
        reasons = [one.reason if one.field in plain else f"{one.field}: {one.reason}" for one in others]
        reasons = list(dict.fromkeys([worst.reason, *reasons]))
        more = f"; and {len(reasons) - JOINED} more" if len(reasons) > JOINED else ""
        joined.append(replace(worst, reason="; ".join(reasons[:JOINED]) + more))
    return joined
