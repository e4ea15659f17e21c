"""Reads a whole set: walks the four folders, keeps valid objects, and gathers an issue for each problem.

The fields inside the files are authoritative; the folders are only compared with them. An object of an unknown
definition is kept with a warning, since the command may merge a set that has the definition.

If several files contain the same name, only the file with a path that matches the content counts, such as a solution in
the author's folder. So an author cannot replace the solution of another author. If no path matches, or several match,
all files with the name are skipped.

A root without `definitions/` may have files in a foreign layout, which are read in addition to the other folders:

    <name>/definition.json         SOL-ExecBench's problem; next to it workload.jsonl, reference.py and solutions with
                                   their sources
    <group>/<name>/…               several problems, possibly in groups, down to DEEPEST folders
    <name>.json                    a single definition dumped from a library; in the root or one folder below it
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic_core import from_json

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.trees import walk_files
from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.data.check import check_workload
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.issue import USUAL_OP_TYPE, LoadIssue, Location
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.jsonl import MOST_JSON_BYTES, read_lines
from flashinfer_bench.data.store.layout import DEFINITIONS, FOLDERS, SOLUTIONS, TRACES, WORKLOADS
from flashinfer_bench.data.store.parse import bounded, parse_line, parse_objects
from flashinfer_bench.data.store.trace_lines import AnyTrace, TraceList, read_trace_line, to_trace
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import DataSetError

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet

Named = TypeVar("Named", Definition, Solution)
FIELD_STEPS: Final = 2
"""Leading steps that decide the kind of a field: `workload.inputs.x` and `workload.inputs.y` are of one kind."""
DEFINITION_FILE: Final = "definition.json"
WORKLOAD_FILES: Final = ("workload.jsonl", "workloads.jsonl", "workload.json", "workloads.json")
DEEPEST: Final = 4
"""Maximum depth, in folders below the root, of the search for definitions in a foreign layout."""
MOST_FILES: Final = 100_000
"""Largest number of files in the search. A root with more files is hardly a folder of definitions."""


@collector_paused()
def read_files(trace_set: TraceSet) -> None:
    """Fill an empty set with the content and the problems of its root.

    Raises:
        DataSetError: the root does not exist, is not a folder, or cannot be read.
    """
    root = trace_set.folder
    try:
        os.scandir(root).close()
    except OSError as error:
        known = {FileNotFoundError: "does not exist", NotADirectoryError: "is not a folder"}
        what = known.get(type(error), f"cannot be read: {error.strerror}")
        raise DataSetError(f"trace set {str(root)!r} {what}; give the folder that holds definitions/") from error
    _Reader(trace_set).read()


def find_foreign(root: Path) -> dict[str, list[Location]]:
    """Return the files of a foreign layout, by the folder that would hold them in the standard layout."""
    found: dict[str, list[Location]] = {DEFINITIONS: [], SOLUTIONS: [], WORKLOADS: []}
    if (root / DEFINITIONS).is_dir() or root.absolute().name in FOLDERS:  # the root is a set, or a folder inside a set
        return found
    walk = walk_files(root, lambda *_: None, passes_over=lambda name: name.startswith(".") or name in FOLDERS)
    folders: dict[Path, list[Path]] = {}
    for file in islice(walk, MOST_FILES):
        if len(file.relative_to(root).parts) <= DEEPEST + 1:
            folders.setdefault(file.parent, []).append(file)
    problems = {folder for folder, files in folders.items() if folder / DEFINITION_FILE in files}
    for folder, files in folders.items():
        below = folder.relative_to(root).parts
        if folder in problems:
            definition = folder / DEFINITION_FILE
            name = str(_keys_of(definition).get("name") or folder.name)
            op_type = below[-2] if len(below) > 1 else USUAL_OP_TYPE
            found[DEFINITIONS].append(Location(definition, op_type=op_type))
            lines = [file for file in files if file.name in WORKLOAD_FILES]
            found[WORKLOADS] += [Location(file, definition=name, root=root) for file in lines]
            others = [file for file in files if file != definition and file not in lines]
            others += sorted((folder / SOLUTIONS).glob("*.json"))
            packed = (file for file in others if _keys_of(file).keys() >= {"sources", "spec"})
            found[SOLUTIONS] += [Location(file, definition=name) for file in packed]
        elif len(below) < 2 and not problems.intersection(folder.parents):
            dumps = (file for file in files if _keys_of(file).keys() >= {"axes", "inputs", "outputs"})
            found[DEFINITIONS] += map(Location, dumps)
    return found


def _keys_of(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if the file is not JSON or holds no object."""
    try:
        held = from_json(read_whole(file, MOST_JSON_BYTES)) if file.suffix == ".json" else None
    except (OSError, ValueError):
        return {}
    return held if isinstance(held, dict) else {}


class _Reader:
    def __init__(self, trace_set: TraceSet) -> None:
        self.found, self.root, self.issues = trace_set, trace_set.folder, trace_set.issues
        self.foreign = find_foreign(self.root)
        self.broken: frozenset[str] = frozenset()
        """Definitions with unusable files. Objects that need a broken definition get no issue of their own."""
        self.authors: dict[str, str] = {}
        self.meant = cache(lambda name: did_you_mean(name, trace_set.definitions))

    def read(self) -> None:
        """Read the four folders and the files in a foreign layout."""
        found = self.found
        self.read_definitions()
        wrong = (issue.file for issue in self.issues if issue.severity == "error")
        self.broken = frozenset(file.stem for file in wrong if file.is_relative_to(self.root / DEFINITIONS))
        self.read_solutions()
        self.read_workloads()
        weights = self.root / layout.WEIGHTS_FILE
        if os.path.lexists(weights):
            from flashinfer_bench.data.store.weights import apply_weights  # parses YAML, which few sets need

            self.issues += apply_weights(weights, found.workloads)
        self.read_traces()
        if not found.definitions and not self.broken:
            reason = f"the set has no definitions ({DEFINITIONS}/<op_type>/<definition>.json)"
            self.issues.append(LoadIssue("warning", self.root, None, None, reason, missing_definition=""))

    def locations(self, folder: str, *suffixes: str) -> Iterator[Location]:
        """Yield the files of a folder, then its files in a foreign layout."""

        def on_skip(path: Path, reason: str) -> None:
            self.issues.append(LoadIssue("error", path, None, None, reason, is_about_location=True))

        top, foreign = self.root / folder, self.foreign.get(folder, [])
        taken = {location.file for location in foreign}
        for file in layout.find_files(top, suffixes, on_skip):
            if file not in taken:
                yield Location(file, op_type=USUAL_OP_TYPE if file.parent == top else file.parent.name, folder=top)
        yield from foreign

    def objects(self, model: type[Named], folder: str) -> Iterator[tuple[Named, Location]]:
        """Yield the objects of a folder's files."""
        for location in self.locations(folder, ".json"):
            yield from parse_objects(model, location, self.issues)

    def compare_location(self, location: Location, *names: str) -> None:
        """Warn if a file's path does not match its content."""
        if reason := layout.why_misplaced(location, names):
            self.issues.append(LoadIssue("warning", location.file, None, None, reason, is_about_location=True))

    def settle(self, read: Iterable[tuple[Named, Location, bool]]) -> Iterator[tuple[Named, Location]]:
        """Yield one object for each name. Add an issue for each skipped object.

        Args:
            read: each object with its location, and whether the location matches the object's names.
        """
        groups: dict[str, list[tuple[Named, Location, bool]]] = {}
        for one in read:
            groups.setdefault(one[0].name, []).append(one)
        for name, group in groups.items():
            kept = group if len(group) == 1 else [one for one in group if one[2]]
            what = f"{type(group[0][0]).__name__.lower()} {name!r} is in "
            files = " and ".join(str(location.file) for _, location, _ in group)
            reason = f"{what}{files}; all are skipped until one is left"
            if len(kept) == 1:
                yield kept[0][:2]
                reason = f"{what}{kept[0][1].file} already; names are unique, so this file is skipped"
            self.issues += [one[1].issue("error", reason) for one in group if kept != [one]]

    def read_definitions(self) -> None:
        """Read the definitions. Warn of a definition that no solution can be judged against."""
        read = []
        for definition, location in self.objects(Definition, DEFINITIONS):
            names = definition.name, definition.op_type
            read.append((definition, location, layout.why_misplaced(location, names) is None))
            if definition.not_runnable_reason is not None:
                reason = f"kept, but nothing is judged against it: {definition.not_runnable_reason}"
                self.issues.append(location.issue("warning", reason, ("reference",)))
        for definition, location in self.settle(read):
            self.found.definitions[definition.name] = definition
            self.found.definition_files[definition.name] = location.file
            self.compare_location(location, definition.name, definition.op_type)

    def read_solutions(self) -> None:
        """Read the solutions. In a foreign layout, solutions may share a name and are then renamed."""
        found, read = self.found, list[tuple[Solution, Location, bool]]()
        parsed = list(self.objects(Solution, SOLUTIONS))
        pairs = Counter(name for name, _ in {(solution.name, solution.definition) for solution, _ in parsed})
        for solution, location in parsed:
            name = solution.name
            if location.folder is None and pairs[name] > 1:
                own = f"{solution.definition}.{name}"
                reason = f"other solutions have the name {name!r}; this solution is renamed to {own!r}"
                self.issues.append(location.issue("warning", reason))
                solution = solution.model_copy(update={"name": own})
            read.append((solution, location, layout.is_of_author(location, author=solution.author, name=name)))
        for solution, location in self.settle(read):
            found.solutions.setdefault(solution.definition, []).append(solution)
            found.solution_files[solution.name] = location.file
            self.authors[solution.name] = solution.author
            definition = found.definitions.get(solution.definition)
            if definition is None:
                self.warn_of_missing(location, solution.definition, f"solution {solution.name!r}")
            else:
                names = solution.name, definition.name, definition.op_type, solution.author
                self.compare_location(location, *names)

    def read_workloads(self) -> None:
        """Read the workloads. Each workload is checked against its definition, and against the uuids before it."""
        seen = dict[tuple[str, str], tuple[Workload, Path]]()
        for file in self.locations(WORKLOADS, ".jsonl", ".json"):
            for line, location in self.read_lines(file, WORKLOADS):
                trace = to_trace(line)
                name, workload = trace.definition, trace.workload
                key, definition = (name, workload.uuid), self.found.definitions.get(name)
                if not trace.is_workload_trace():
                    reason = "has an evaluation, which a workload has not; it is dropped"
                    self.issues.append(location.issue("warning", reason))
                    trace = Trace(definition=name, workload=workload)
                if key in seen:
                    self.report_repeated(location, name, workload, *seen[key])
                elif findings := check_workload(definition, workload) if definition is not None else []:
                    self.issues += [location.issue("error", reason, steps) for steps, reason in findings]
                else:
                    seen[key] = workload, location.file
                    self.found.workloads.setdefault(name, []).append(trace)

    def report_repeated(self, location: Location, name: str, workload: Workload, known: Workload, first: Path) -> None:
        """Add the issue of a workload with a repeated uuid."""
        uuid = workload.uuid
        if workload.digest() == known.digest():
            reason = f"workload {uuid} is repeated, first in {first}; remove one copy"
            self.issues.append(location.issue("warning", reason, ("workload",)))
        else:
            reason = f"uuid {uuid} belongs to another workload of {name}, in {first}; this workload is skipped"
            self.issues.append(location.issue("error", reason, ("workload", "uuid")))

    def read_traces(self) -> None:
        """Read the verdicts."""
        kept: dict[str, list[AnyTrace]] = {}
        for file in self.locations(TRACES, ".jsonl", ".json"):
            for trace, location in self.read_lines(file, TRACES):
                if trace.solution is None:
                    self.issues.append(location.issue("error", f"has no evaluation; workloads belong in {WORKLOADS}/"))
                else:
                    kept.setdefault(trace.definition, []).append(trace)
        self.found.traces = {name: TraceList(traces) for name, traces in kept.items()}

    def read_lines(self, file: Location, folder: str) -> Iterator[tuple[AnyTrace, Location]]:
        """Yield the traces of a file. Each definition is checked once per file, not once per line."""
        start, first, count = len(self.issues), dict[str, tuple[Location, str]](), Counter[str]()
        found: Iterator[tuple[AnyTrace, Location]] = parse_objects(Trace, file, self.issues)
        if file.file.suffix == ".jsonl":
            found = bounded(self.parse_lines(file, folder == TRACES), file.file, self.issues)
        for trace, location in found:
            if not count[trace.definition]:
                first[trace.definition] = location, trace.solution or ""
            count[trace.definition] += 1
            yield trace, location
        self.issues[start:] = _join(self.issues[start:])
        for name, (location, solution) in first.items():
            definition = self.found.definitions.get(name)
            if definition is None:
                what = folder if count[name] > 1 else folder[:-1]
                self.warn_of_missing(location, name, f"{count[name]} {what} of this file")
            elif file.file.suffix == ".jsonl":
                author = [self.authors[solution]] if solution in self.authors else []
                self.compare_location(file, name, definition.op_type, *author)

    def parse_lines(self, file: Location, keeps_lines: bool) -> Iterator[tuple[AnyTrace, Location] | None]:
        """Yield each line of a file with its location; None for an invalid line. Lines stay text if `keeps_lines`."""
        issues = self.issues
        try:
            for number, line, is_ended in read_lines(file.file):
                location, before = file._replace(line=number), len(issues)
                trace: AnyTrace | None = read_trace_line(line) if keeps_lines else None
                trace = trace or parse_line(Trace, line, location, issues)
                if trace is None and not is_ended and issues[before].reason.startswith("not JSON"):
                    reason = "the last line was cut off in the middle; it is skipped"
                    issues[before:] = [location.issue("warning", reason)]
                yield (trace, location) if trace is not None else None
        except OSError as error:
            issues.append(file.issue("error", f"cannot be read: {error.strerror}"))

    def warn_of_missing(self, location: Location, name: str, what: str) -> None:
        """Warn that a definition is missing. Definitions with an invalid file get no second message."""
        if name not in self.broken:
            issue = location.issue("warning", f"{what}: definition {name!r} is not there{self.meant(name)}")
            self.issues.append(replace(issue, field="definition", missing_definition=name))


def _join(issues: list[LoadIssue]) -> list[LoadIssue]:
    """Join issues about the lines of a file that have the same reason and kind of field. A joined issue has the first
    location."""
    groups: dict[object, list[LoadIssue]] = {}
    for issue in issues:
        kind = (issue.field or "").split(".")[:FIELD_STEPS]
        groups.setdefault((issue.severity, issue.reason, *kind), []).append(issue)
    joined = []
    for first, *others in groups.values():
        lines = len({issue.line for issue in (first, *others)})
        more = f" (so in {lines} lines of this file)" if lines > 1 else ""
        joined.append(replace(first, reason=first.reason + more))
    return joined
