"""Reading a whole set: walk the four folders, keep what is right, gather an issue for what is not.

A root of another layout has loose files (`loose.py`), which are read beside those of the four folders. The fields
inside the files count; the folders are only compared with them. What belongs to an unknown definition is kept with a
warning, since another set that is given beside this one may have the definition.

Several files may claim one name. A file that lies where its content says beats one that does not. Of solutions the only
one counts that lies in its author's folder under its name, so that nobody displaces a rival; if several do, or none,
none counts. Of definitions that differ none counts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.data.check import check_workload
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.issue import LoadIssue, Place
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.jsonl import read_lines
from flashinfer_bench.data.store.loose import find_loose
from flashinfer_bench.data.store.parse import bounded, parse_line, parse_objects
from flashinfer_bench.data.store.trace_lines import AnyTrace, TraceList, read_trace_line, to_trace
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import DataSetError

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet

Named = TypeVar("Named", Definition, Solution)
FIELD_STEPS: Final = 2
"""Leading steps of a field that count: `workload.inputs.x` and `workload.inputs.y` are one kind of place."""


@collector_paused()
def read_files(trace_set: TraceSet) -> None:
    """Fill an empty set with what the files of its root hold, and with what is wrong in them.

    Raises:
        DataSetError: the root is not there, is no folder, or cannot be read.
    """
    root = trace_set.folder
    try:
        with os.scandir(root):
            pass
    except OSError as error:
        known = {FileNotFoundError: "does not exist", NotADirectoryError: "is not a folder"}
        what = known.get(type(error), f"cannot be read: {error.strerror}")
        raise DataSetError(f"trace set {str(root)!r} {what}; give the folder that holds definitions/") from error
    _Reader(trace_set).read()


class _Reader:
    def __init__(self, trace_set: TraceSet) -> None:
        self.found, self.root = trace_set, trace_set.folder
        self._issues = trace_set.issues
        self._loose = find_loose(self.root)
        self._loose_files = {place.file for places in self._loose.values() for place in places}
        self._broken: frozenset[str] = frozenset()
        """Definitions whose files cannot be used: what needs one of them gets no issue of its own."""
        self._authors: dict[str, str] = {}
        self._meant = cache(lambda name: did_you_mean(name, trace_set.definitions))

    def read(self) -> None:
        """Read the four folders, and what lies loose."""
        found, root = self.found, self.root
        self._read_definitions()
        self._broken = layout.definition_names(root, (one.file for one in self._issues if one.severity == "error"))
        self._read_solutions()
        self._read_workloads()
        self._read_traces()
        if not found.definitions and not self._broken:
            reason = f"the set has no definitions ({layout.DEFINITIONS}/<op_type>/<definition>.json)"
            found.issues.append(LoadIssue("warning", root, None, None, reason, missing_definition=""))

    def _places(self, folder: str, *suffixes: str) -> list[Place]:
        def leave_out(path: Path, reason: str) -> None:
            self._issues.append(LoadIssue("error", path, None, None, reason, is_about_place=True))

        top, loose = self.root / folder, self._loose.get(folder, [])
        files = (file for file in layout.find_files(top, suffixes, leave_out) if file not in self._loose_files)
        return [Place(file, op_type=file.parent.name) if file.parent != top else Place(file) for file in files] + loose

    def _compare_place(self, file: Path, folder: str, *names: str) -> None:
        if file not in self._loose_files and (reason := layout.check_place(file, self.root / folder, names)):
            self._issues.append(LoadIssue("warning", file, None, None, reason, is_about_place=True))

    def _settle(
        self, read: Iterable[tuple[Named, Place]], is_in_place: Callable[[Named, Path], bool]
    ) -> Iterator[tuple[Named, Place]]:
        """Yield what counts of objects that may claim the same names, with an issue for each that does not."""
        groups: dict[str, list[tuple[Named, Place]]] = {}
        for model, place in read:
            groups.setdefault(model.name, []).append((model, place))
        for name, group in groups.items():
            kept = group
            if len(group) > 1:
                kept = [one for one in group if is_in_place(one[0], one[1].file)]
            if isinstance(group[0][0], Definition):
                kept = kept or group
                kept = kept[:1] if all(model == kept[0][0] for model, _ in kept) else kept
            what = f"{type(group[0][0]).__name__.lower()} {name!r} is in "
            reason = f"{what}{' and '.join(str(place.file) for _, place in group)}; none is used until one is left"
            if len(kept) == 1:
                yield kept[0]
                reason = f"{what}{kept[0][1].file} already; names are unique, this one is left out"
            wrong = [one for one in group if len(kept) != 1 or one is not kept[0]]
            self._issues += [place.issue("error", reason) for _, place in wrong]

    def _read_definitions(self) -> None:
        found, folder = self.found, layout.DEFINITIONS
        places = self._places(folder, ".json")
        read = [one for place in places for one in parse_objects(Definition, place, self._issues)]
        for definition, place in read:
            if definition.not_runnable_reason is not None:
                reason = f"kept, but nothing is judged against it: {definition.not_runnable_reason}"
                self._issues.append(place.issue("warning", reason, ("reference",)))

        def is_in_place(definition: Definition, file: Path) -> bool:
            names = definition.name, definition.op_type
            return file in self._loose_files or layout.check_place(file, self.root / folder, names) is None

        for definition, place in self._settle(read, is_in_place):
            found.definitions[definition.name] = definition
            found.definition_files[definition.name] = place.file
            self._compare_place(place.file, folder, definition.name, definition.op_type)

    def _read_solutions(self) -> None:
        found, folder = self.found, layout.SOLUTIONS
        places = self._places(folder, ".json")
        read = [one for place in places for one in parse_objects(Solution, place, self._issues)]

        def is_in_place(solution: Solution, file: Path) -> bool:
            names = {"author": solution.author, "name": solution.name}
            return file in self._loose_files or layout.is_of_author(file, self.root / folder, **names)

        for solution, place in self._settle(self._with_own_names(read), is_in_place):
            found.solutions.setdefault(solution.definition, []).append(solution)
            found.solution_files[solution.name] = place.file
            self._authors[solution.name] = solution.author
            definition = found.definitions.get(solution.definition)
            if definition is None:
                self._warn_of_missing(place, solution.definition, f"solution {solution.name!r}")
            else:
                names = solution.name, definition.name, definition.op_type, solution.author
                self._compare_place(place.file, folder, *names)

    def _with_own_names(self, read: list[tuple[Solution, Place]]) -> Iterator[tuple[Solution, Place]]:
        """Tell apart solutions of loose definitions: each folder may have one of the same name."""
        definitions: dict[str, set[str]] = {}
        for solution, _ in read:
            definitions.setdefault(solution.name, set()).add(solution.definition)
        for solution, place in read:
            name = solution.name
            if len(definitions[name]) > 1 and place.file in self._loose_files:
                own = f"{solution.definition}.{name}"
                self._issues.append(
                    place.issue("warning", f"others have the name {name!r}; this one counts as {own!r}")
                )
                solution = solution.model_copy(update={"name": own})
            yield solution, place

    def _read_workloads(self) -> None:
        seen = dict[tuple[str, str], tuple[Workload, Path]]()
        for file in self._places(layout.WORKLOADS, ".jsonl", ".json"):
            for trace, place in self._read_lines(file, layout.WORKLOADS):
                workload = self._accept_workload(to_trace(trace), place, seen)
                if workload is not None:
                    self.found.workloads.setdefault(workload.definition, []).append(workload)

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
        self._issues += [place.issue("error", reason, steps) for steps, reason in findings]
        if findings:
            return None
        seen[name, workload.uuid] = workload, place.file
        return trace

    def _read_traces(self) -> None:
        kept: dict[str, list[AnyTrace]] = {}
        for file in self._places(layout.TRACES, ".jsonl", ".json"):
            for trace, place in self._read_lines(file, layout.TRACES):
                if trace.solution is None:
                    reason = f"has no evaluation; workloads stand in {layout.WORKLOADS}/"
                    self._issues.append(place.issue("error", reason))
                else:
                    kept.setdefault(trace.definition, []).append(trace)
        self.found.traces = {name: TraceList(traces) for name, traces in kept.items()}

    def _read_lines(self, file: Place, folder: str) -> Iterator[tuple[AnyTrace, Place]]:
        """Yield what a file holds; look once at each definition that lines name, however many lines there are."""
        start, first, count = len(self._issues), dict[str, tuple[Place, str]](), Counter[str]()
        found: Iterator[tuple[AnyTrace, Place]] = parse_objects(Trace, file, self._issues)
        if file.file.suffix == ".jsonl":
            found = bounded(self._parse_lines(file, keeps_lines=folder == layout.TRACES), file.file, self._issues)
        for trace, place in found:
            name = trace.definition
            count[name] += 1
            if count[name] == 1:
                first[name] = place, trace.solution or ""
            yield trace, place
        self._issues[start:] = _join(self._issues[start:])
        for name, (place, solution) in first.items():
            definition, author = self.found.definitions.get(name), self._authors.get(solution)
            if definition is None:
                what = folder if count[name] > 1 else folder[:-1]
                self._warn_of_missing(place, name, f"{count[name]} {what} of this file")
            elif file.file.suffix == ".jsonl":
                self._compare_place(file.file, folder, name, definition.op_type, *([author] if author else []))

    def _parse_lines(self, file: Place, *, keeps_lines: bool) -> Iterator[tuple[AnyTrace, Place] | None]:
        """Yield each line of a file with its place, as it is if lines are kept; None for a wrong line."""
        issues = self._issues
        try:
            for number, line, is_ended in read_lines(file.file):
                place, before = file._replace(line=number), len(issues)
                trace: AnyTrace | None = read_trace_line(line) if keeps_lines else None
                trace = trace or parse_line(Trace, line, place, issues)
                if trace is None and not is_ended and issues[before].reason.startswith("not JSON"):
                    reason = "the last line was cut off in the middle; it is passed over"
                    issues[before:] = [place.issue("warning", reason)]
                yield (trace, place) if trace is not None else None
        except OSError as error:
            issues.append(file.issue("error", f"cannot be read: {error.strerror}"))

    def _warn_of_missing(self, place: Place, name: str, what: str) -> None:
        if name not in self._broken:
            issue = place.issue("warning", f"{what}: definition {name!r} is not there{self._meant(name)}")
            self._issues.append(replace(issue, field="definition", missing_definition=name))


def _join(issues: list[LoadIssue]) -> list[LoadIssue]:
    """Join issues of a file's lines if reason and kind of place are the same; the first place stays."""
    groups: dict[object, list[LoadIssue]] = {}
    for issue in issues:
        place = issue.field.split(".")[:FIELD_STEPS] if issue.field else ()
        groups.setdefault((issue.severity, issue.reason, *place), []).append(issue)
    joined = []
    for group in groups.values():
        lines = len({issue.line for issue in group})
        more = f" (so in {lines} lines of this file)" if lines > 1 else ""
        joined.append(replace(group[0], reason=group[0].reason + more))
    return joined
