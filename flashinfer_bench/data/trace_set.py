"""The trace set: definitions, solutions, workloads and traces, by definition. Loading and look-ups, no judging."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.latest import find_latest
from flashinfer_bench.data.model import DataModel
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store.checks import check_workload
from flashinfer_bench.data.store.layout import TRACES, WORKLOADS
from flashinfer_bench.data.store.read import read_files
from flashinfer_bench.data.store.trace_lines import AnyTrace, to_trace
from flashinfer_bench.data.store.trace_list import TraceList, kept_of
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import DataSetError

DATASET_VARIABLE: Final = "FIB_DATASET_PATH"
"""Environment variable with the default data set."""
DEFAULT_BOUND: Final = 1e-2
"""Default error bounds of the look-ups; existing scripts expect this value."""


@dataclass
class TraceSet:
    """Everything under one root, or under several that were merged."""

    root: Path | None = None
    """Where results are written; None for a set that lives in memory."""
    definitions: dict[str, Definition] = field(default_factory=dict)
    """Definition name to definition."""
    solutions: dict[str, list[Solution]] = field(default_factory=dict)
    """Definition name to its solutions."""
    workloads: dict[str, list[Trace]] = field(default_factory=dict)
    """Definition name to its workloads, each a trace without solution."""
    traces: dict[str, list[Trace]] = field(default_factory=dict)
    """Definition name to all its traces in the order of the files; repeated ones are all kept."""
    issues: list[LoadIssue] = field(default_factory=list)
    """Everything that was wrong in the files."""
    roots: list[Path] = field(default_factory=list)
    """The root, or the roots that were merged."""
    definition_files: dict[str, Path] = field(default_factory=dict)
    """Definition name to its file."""
    solution_files: dict[str, Path] = field(default_factory=dict)
    """Solution name to its file."""
    solution_roots: dict[str, Path] = field(default_factory=dict)
    """Solution name to the root that it came from; its traces belong there."""
    workload_roots: dict[str, Path] = field(default_factory=dict)
    """Definition name to the root that holds its first workloads; see `blob_root`."""
    blob_roots: dict[tuple[str, str], Path] = field(default_factory=dict)
    """(definition name, uuid) to root, for workloads that another root than `workload_roots` holds."""

    def __post_init__(self) -> None:
        self.root = Path(self.root) if self.root is not None else None
        if self.root is None:
            return
        self.roots = self.roots or [self.root]
        for group in self.solutions.values():
            for solution in group:
                self.solution_roots.setdefault(solution.name, self.root)
        for name in self.workloads:
            self.workload_roots.setdefault(name, self.root)

    @classmethod
    def from_path(cls, path: Path | str | None = None, *, environment: Mapping[str, str] = os.environ) -> TraceSet:
        """Load the set under a folder; what is wrong in it is in `issues`, and the rest is usable.

        Args:
            path: the folder; None for the one that $FIB_DATASET_PATH names.
            environment: where that variable is looked up.

        Raises:
            DataSetError: no folder was given, or it is not there.
        """
        if path is None:
            path = environment.get(DATASET_VARIABLE) or None
        if path is None:
            raise DataSetError(f"no trace set was given; give its folder, or set {DATASET_VARIABLE}")
        found = read_files(Path(path).expanduser())
        return cls(
            root=found.root,
            definitions=found.definitions,
            solutions=found.solutions,
            workloads=found.workloads,
            traces=dict(found.traces),
            issues=found.issues,
            definition_files=found.definition_files,
            solution_files=found.solution_files,
        )

    @classmethod
    def merge(cls, trace_sets: Sequence[TraceSet]) -> TraceSet:
        """Put sets together: what is the same in two counts once, traces are all kept.

        A run writes each trace to the root that its solution came from (`solution_roots`).

        Raises:
            DataSetError: no set was given, or two have different definitions or different solutions of one name.
        """
        if not trace_sets:
            raise DataSetError("no trace set was given; give at least one folder")
        roots = list(dict.fromkeys(root for part in trace_sets for root in part.roots))
        merged = cls(root=trace_sets[0].root, roots=roots)
        clashes = [clash for part in trace_sets for clash in _merge_definitions(merged, part)]
        clashes += [clash for part in trace_sets for clash in _merge_solutions(merged, part)]
        if clashes:
            raise DataSetError("the trace sets contradict each other:\n  " + "\n  ".join(clashes))
        for part in trace_sets:
            fresh = (issue for issue in part.issues if issue not in merged.issues)
            merged.issues.extend([issue for issue in fresh if not _is_settled(issue, merged)])
            _merge_workloads(merged, part)
            for name, traces in part.traces.items():
                merged.traces.setdefault(name, TraceList()).extend(traces)
        return merged

    def to_dict(self) -> dict[str, Any]:
        """Give the set as plain JSON-able dicts and lists."""
        groups: dict[str, Mapping[str, Sequence[DataModel]]] = {
            "solutions": self.solutions,
            "workloads": self.workloads,
            "traces": self.traces,
        }
        plain: dict[str, Any] = {
            kind: {name: [item.to_dict() for item in items] for name, items in group.items()}
            for kind, group in groups.items()
        }
        definitions = {name: definition.to_dict() for name, definition in self.definitions.items()}
        return {"root": str(self.root) if self.root is not None else None, "definitions": definitions, **plain}

    def get_solution(self, name: str) -> Solution | None:
        """Return the solution of that name, or None."""
        return next((item for group in self.solutions.values() for item in group if item.name == name), None)

    def blob_root(self, definition: str, uuid: str) -> Path | None:
        """Return the root that the blob paths of a workload are relative to; None for a set in memory."""
        return self.blob_roots.get((definition, uuid)) or self.workload_roots.get(definition) or self.root

    def latest_traces(self, definition: str) -> list[Trace]:
        """Return the traces of a definition that count: of each solution, workload and hardware the latest one."""
        return [to_trace(trace) for trace in self._latest(definition)]

    def filter_traces(self, definition: str, atol: float = DEFAULT_BOUND, rtol: float = DEFAULT_BOUND) -> list[Trace]:
        """Return the latest traces that passed with max_absolute_error <= atol and max_relative_error <= rtol.

        Quick looks are not among them.
        """
        return [to_trace(trace) for trace in self._passed(definition) if _is_within(trace, atol, rtol)]

    def get_best_trace(
        self,
        definition: str,
        axes: Mapping[str, int] | None = None,
        max_abs_error: float = DEFAULT_BOUND,
        max_rel_error: float = DEFAULT_BOUND,
    ) -> Trace | None:
        """Return the latest passing trace with the highest speed-up, no quick look; None when there is none.

        The judge fails an element only when its absolute and its relative error are both too large, and may allow some
        elements to fail: the largest relative error of a right answer can be huge near zero. So the verdict counts, and
        a default bound adds nothing to it. Any other bound also limits that largest error, as `filter_traces` does. Of
        equal speed-ups, as when no reference was measured, the lower latency wins.

        Args:
            definition: its name.
            axes: only workloads with these sizes.
            max_abs_error: bound on max_absolute_error.
            max_rel_error: bound on max_relative_error.
        """
        atol = None if max_abs_error == DEFAULT_BOUND else max_abs_error
        rtol = None if max_rel_error == DEFAULT_BOUND else max_rel_error
        wanted = (axes or {}).items()
        fitting = [
            trace
            for trace in self._passed(definition)
            if wanted <= trace.workload.axes.items() and _is_within(trace, atol, rtol)
        ]
        best = max(fitting, key=_rank, default=None)
        return to_trace(best) if best is not None else None

    def summary(self) -> dict[str, Any]:
        """Count what is in the set, and its latest traces by status, definition, solution, author and op type."""
        latest = [trace for name in self.traces for trace in self._latest(name)]
        passed = [trace for trace in latest if trace.is_successful()]
        authors = {item.name: item.author for group in self.solutions.values() for item in group}
        op_types = {name: definition.op_type for name, definition in self.definitions.items()}
        latencies = [-_rank(trace)[1] for trace in passed if not _is_quick(trace)]
        return {
            "definitions": len(self.definitions),
            "solutions": sum(map(len, self.solutions.values())),
            "workloads": sum(map(len, self.workloads.values())),
            "traces": sum(map(len, self.traces.values())),
            "total": len(latest),
            "passed": len(passed),
            "failed": len(latest) - len(passed),
            "min_latency_ms": min(latencies, default=None),
            "max_latency_ms": max(latencies, default=None),
            "avg_latency_ms": sum(latencies) / len(latencies) if latencies else None,
            "by_status": _count(trace.evaluation.status.value for trace in latest if trace.evaluation),
            "by_definition": _count(trace.definition for trace in latest),
            "by_solution": _count(trace.solution or "" for trace in latest),
            "by_author": _count(authors.get(trace.solution or "", "unknown") for trace in latest),
            "by_op_type": _count(op_types.get(trace.definition, "unknown") for trace in latest),
        }

    def add_traces(self, traces: Iterable[Trace]) -> None:
        """Add traces in memory; `TraceWriter` is what puts them on disk.

        Raises:
            DataSetError: one has no evaluation; none was added.
        """
        added = list(traces)
        for trace in added:
            if trace.solution is None:
                raise DataSetError(f"workload {trace.workload.uuid} of {trace.definition} has no evaluation to add")
        for trace in added:
            self.traces.setdefault(trace.definition, []).append(trace)

    def without_traces(self) -> TraceSet:
        """Return a set with the same definitions, solutions and workloads, and no traces yet."""
        return replace(
            self,
            definitions=dict(self.definitions),
            solutions={name: list(items) for name, items in self.solutions.items()},
            workloads={name: list(items) for name, items in self.workloads.items()},
            traces={},
            issues=list(self.issues),
        )

    def backup_traces(self, *, now: datetime | None = None) -> list[Path]:
        """Move the traces/ folder of each root aside, under a name with the time, and forget the traces in memory."""
        stamp = (now or datetime.now(timezone.utc)).strftime("%Y%m%d_%H%M%S")
        moved = []
        for root in self.roots:
            if (root / TRACES).is_dir():
                target = _free_name(root / f"{TRACES}_backup_{stamp}")
                moved.append((root / TRACES).rename(target))
        self.traces = {}
        return moved

    def _latest(self, definition: str) -> list[AnyTrace]:
        return find_latest(kept_of(self.traces.get(definition, [])))

    def _passed(self, definition: str) -> list[AnyTrace]:
        """Return the latest traces that passed, without quick looks, which nothing is chosen by."""
        return [trace for trace in self._latest(definition) if trace.is_successful() and not _is_quick(trace)]


def _is_quick(trace: AnyTrace) -> bool:
    return trace.evaluation is not None and trace.evaluation.is_quick


def _is_within(trace: AnyTrace, atol: float | None, rtol: float | None) -> bool:
    correctness = trace.evaluation.correctness if trace.evaluation else None
    return correctness is not None and (
        (atol is None or correctness.max_absolute_error <= atol)
        and (rtol is None or correctness.max_relative_error <= rtol)
    )


def _rank(trace: AnyTrace) -> tuple[float, float]:
    performance = trace.evaluation.performance if trace.evaluation else None
    return (performance.speedup_factor, -performance.latency_ms) if performance else (0.0, float("-inf"))


def _count(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))


def _free_name(path: Path) -> Path:
    candidates = (path if index == 0 else path.with_name(f"{path.name}_{index}") for index in itertools.count())
    return next(candidate for candidate in candidates if not candidate.exists())


def _merge_definitions(merged: TraceSet, part: TraceSet) -> Iterator[str]:
    for name, definition in part.definitions.items():
        known = merged.definitions.setdefault(name, definition)
        file = part.definition_files.get(name)
        if file is not None:
            merged.definition_files.setdefault(name, file)
        if known.digest() != definition.digest():
            first = merged.definition_files.get(name, "a set in memory")
            yield f"definition {name!r} differs between {first} and {file or 'a set in memory'}"


def _merge_solutions(merged: TraceSet, part: TraceSet) -> Iterator[str]:
    known = {item.name: item for group in merged.solutions.values() for item in group}
    for name, group in part.solutions.items():
        for solution in group:
            file = part.solution_files.get(solution.name)
            if solution.name not in known:
                known[solution.name] = solution
                merged.solutions.setdefault(name, []).append(solution)
                if file is not None:
                    merged.solution_files[solution.name] = file
                if (root := part.solution_roots.get(solution.name, part.root)) is not None:
                    merged.solution_roots[solution.name] = root
            elif known[solution.name].digest() != solution.digest():
                first = merged.solution_files.get(solution.name, "a set in memory")
                yield f"solution {solution.name!r} differs between {first} and {file or 'a set in memory'}"


def _merge_workloads(merged: TraceSet, part: TraceSet) -> None:
    for name, workloads in part.workloads.items():
        known = {trace.workload.uuid: trace.workload for trace in merged.workloads.get(name, [])}
        is_new = name in merged.definitions and name not in part.definitions
        for trace in workloads:
            root = part.blob_root(name, trace.workload.uuid)
            reasons = _workload_faults(merged, trace, known.get(trace.workload.uuid), is_checked=not is_new)
            file = (root or Path()) / WORKLOADS
            owner = f"workload {trace.workload.uuid} of {name}"
            merged.issues.extend(LoadIssue("error", file, None, None, f"{owner}: {reason}") for reason in reasons)
            if reasons or trace.workload.uuid in known:
                continue
            merged.workloads.setdefault(name, []).append(trace)
            if root is not None and merged.workload_roots.setdefault(name, root) != root:
                merged.blob_roots[name, trace.workload.uuid] = root


def _workload_faults(merged: TraceSet, trace: Trace, same: Workload | None, *, is_checked: bool) -> list[str]:
    """Say why a workload cannot be merged: its uuid is taken, or a definition that came only now does not fit it."""
    if same is not None and same.digest() != trace.workload.digest():
        return ["its uuid belongs to another workload in another set; this one is left out"]
    if same is not None or is_checked:
        return []
    return [
        f"{'.'.join(place)}: {reason}"
        for place, reason in check_workload(merged.definitions[trace.definition], trace.workload)
    ]


def _is_settled(issue: LoadIssue, merged: TraceSet) -> bool:
    if issue.missing_definition is None:
        return False
    return (
        bool(merged.definitions) if issue.missing_definition == "" else issue.missing_definition in merged.definitions
    )
