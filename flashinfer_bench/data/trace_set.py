"""The trace set: definitions, solutions, workloads and traces, by definition. The set loads and looks up objects, but
judges nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.sets import merge as adding
from flashinfer_bench.data.sets import scores
from flashinfer_bench.data.sets.columns import make_frame
from flashinfer_bench.data.sets.results import Result, find_latest, list_results
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store.layout import BLOB, DEFINITIONS, SOLUTIONS, TRACES, WORKLOADS, own_folders
from flashinfer_bench.data.store.read import read_files
from flashinfer_bench.data.store.trace_lines import AnyTrace, kept_of, to_trace
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.trace_apply.export import export_apply
from flashinfer_bench.env import DATASET_VARIABLE, dataset_root, home_expanded
from flashinfer_bench.errors import DataSetError

if TYPE_CHECKING:
    import pandas

DEFAULT_BOUND: Final = 1e-2
"""Default of both error bounds in look-ups, for compatibility with existing scripts."""


def _folder_property(*parts: str) -> property:
    return property(lambda trace_set: trace_set.folder.joinpath(*parts), doc=f"The folder {'/'.join(parts)}/.")


@dataclass(repr=False)
class TraceSet:
    """The content of one root, or of several merged roots."""

    root: Path | None = None
    """The folder for results; None for a set in memory."""
    definitions: dict[str, Definition] = field(default_factory=dict)
    """Definition name to definition."""
    solutions: dict[str, list[Solution]] = field(default_factory=dict)
    """Definition name to its solutions."""
    workloads: dict[str, list[Trace]] = field(default_factory=dict)
    """Definition name to its workloads, as traces without a solution."""
    traces: dict[str, MutableSequence[Trace]] = field(default_factory=dict)
    """Definition name to its traces in the order of the files, including repeated traces."""
    issues: list[LoadIssue] = field(default_factory=list)
    """The problems of the files."""
    roots: list[Path] = field(default_factory=list)
    """The root, or the merged roots."""
    definition_files: dict[str, Path] = field(default_factory=dict)
    """Definition name to its file."""
    solution_files: dict[str, Path] = field(default_factory=dict)
    """Solution name to its file."""
    solution_roots: dict[str, Path] = field(default_factory=dict)
    """Solution name to its root. Solutions of `root` are missing; see `solution_root`."""
    blob_roots: dict[tuple[str, str], Path] = field(default_factory=dict)
    """(definition name, uuid) of a workload to its root. Workloads of `root` are missing; see `blob_root`."""
    baseline_author: str | None = field(default=None, kw_only=True)
    """Author whose lowest latencies are the baseline of reports; None for the reference."""

    def __post_init__(self) -> None:
        if self.root is not None:
            self.root = Path(self.root)
            self.roots = self.roots or [self.root]

    def __repr__(self) -> str:
        """Describe the root, the content, and the problems of the set in three lines."""
        errors = sum(issue.severity == "error" for issue in self.issues)
        return (
            f"TraceSet({', '.join(map(str, self.roots)) or 'in memory'})\n"
            f"  {', '.join(f'{number:,} {noun}' for noun, number in self.counts.items())}\n"
            f"  issues: {errors} errors, {len(self.issues) - errors} warnings"
        )

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of definitions, solutions, workloads and traces."""
        groups = {kind: sum(map(len, getattr(self, kind).values())) for kind in ("solutions", "workloads", "traces")}
        return {"definitions": len(self.definitions), **groups}

    @classmethod
    def from_path(cls, path: Path | str | None = None) -> TraceSet:
        """Load the set in a folder. Problems are in `issues`; parts without problems are usable.

        Args:
            path: the folder; None for $FIB_DATASET_PATH, else ~/.cache/flashinfer_bench/dataset.

        Raises:
            DataSetError: the folder does not exist, or no folder was given and the default folder does not exist.
        """
        usual = dataset_root(os.environ)
        if path is None and not os.environ.get(DATASET_VARIABLE) and not usual.exists():
            raise DataSetError(
                f"no trace set was given, and there is none in {usual}; give its folder, or set {DATASET_VARIABLE}"
            )
        found = cls(root=home_expanded(usual if path is None else path))
        read_files(found)
        return found

    @property
    def folder(self) -> Path:
        """The folder of the set; raise DataSetError for a set in memory."""
        if self.root is None:
            raise DataSetError("the trace set lives in memory, so it has no folders: give it a root")
        return self.root

    definitions_path = _folder_property(DEFINITIONS)
    solutions_path = _folder_property(SOLUTIONS)
    workloads_path = _folder_property(WORKLOADS)
    traces_path = _folder_property(TRACES)
    blob_path = _folder_property(BLOB)
    blob_workloads_path = _folder_property(BLOB, WORKLOADS)

    @classmethod
    def merge(cls, trace_sets: Sequence[TraceSet]) -> TraceSet:
        """Merge sets: equal objects count once, and all traces are kept.

        A run writes each trace to the root of its solution (`solution_roots`).

        Raises:
            DataSetError: no set was given, or two sets have different definitions or different solutions of one name.
        """
        if not trace_sets:
            raise DataSetError("no trace set was given; give at least one folder")
        roots = list(dict.fromkeys(root for part in trace_sets for root in part.roots))
        merged = cls(root=trace_sets[0].root, roots=roots)
        adding.merge_into(merged, trace_sets)
        return merged

    def to_dict(self) -> dict[str, Any]:
        """Return the set as plain JSON-able dicts and lists."""
        return {
            "root": str(self.root) if self.root is not None else None,
            "definitions": {name: definition.to_dict() for name, definition in self.definitions.items()},
            **{
                kind: {name: [item.to_dict() for item in items] for name, items in getattr(self, kind).items()}
                for kind in ("solutions", "workloads", "traces")
            },
        }

    def to_dataframe(self) -> pandas.DataFrame:
        """Return a data frame with a row for each trace; docs/export.md lists its columns.

        Raises:
            ConfigError: pandas is not installed.
        """
        return make_frame(self, self.all_traces())

    def get_solution(self, name: str) -> Solution | None:
        """Return the solution with this name, or None."""
        return next((item for item in self.all_solutions() if item.name == name), None)

    def all_solutions(self) -> Iterator[Solution]:
        """Yield the solutions of all definitions."""
        return chain.from_iterable(self.solutions.values())

    def all_traces(self, definition: str | None = None) -> Iterator[AnyTrace]:
        """Yield the traces of a definition, or of all, as they are stored: for a reader that needs only the fields of a
        line."""
        groups = self.traces.values() if definition is None else [self.traces.get(definition, [])]
        return chain.from_iterable(map(kept_of, groups))

    def blob_root(self, definition: str, uuid: str) -> Path | None:
        """Return the root for the blob paths of a workload; None for a set in memory."""
        return self.blob_roots.get((definition, uuid), self.root)

    def solution_root(self, name: str) -> Path | None:
        """Return the root for the traces of a solution; None for a set in memory."""
        return self.solution_roots.get(name, self.root)

    def is_of_one_root(self, definition: str, uuid: str) -> bool:
        """Return whether a workload is in the root of its definition. No other workload may set its own tolerance."""
        file = self.definition_files.get(definition)
        return file is None or self.blob_root(definition, uuid) == self.root_of(file)

    def is_of_first_root(self, definition: str, uuid: str) -> bool:
        """Return whether a definition and its workload are in the first root, which the user trusts.

        The other roots may come from the authors of the solutions.
        """
        file = self.definition_files.get(definition)
        if file is None:
            return True
        lies_inside = any(file.resolve().is_relative_to(folder) for folder in own_folders(self.roots[0]))
        return lies_inside and self.root_of(file) == self.roots[0] == self.blob_root(definition, uuid)

    def root_of(self, file: Path) -> Path | None:
        """Return the innermost root of a file. A root may be inside another root."""
        holding = [root for root in self.roots if file.is_relative_to(root)]
        return max(holding, key=lambda root: len(root.parts), default=None)

    def filter_traces(
        self,
        definition: str | None = None,
        atol: float = DEFAULT_BOUND,
        rtol: float = DEFAULT_BOUND,
        *,
        def_name: str | None = None,
    ) -> list[Trace]:
        """Return the latest traces that passed with max_absolute_error <= atol and max_relative_error <= rtol.

        Quick looks are skipped. `def_name` is an alias of `definition`.
        """
        found = [
            item for item in self._results(definition or def_name) if item.is_passed and not item.reported.run.quick
        ]
        return [to_trace(item.trace) for item in found if _is_within(item, atol, rtol)]

    def get_best_trace(
        self,
        definition: str | None = None,
        axes: Mapping[str, int] | None = None,
        max_abs_error: float = DEFAULT_BOUND,
        max_rel_error: float = DEFAULT_BOUND,
        *,
        def_name: str | None = None,
    ) -> Trace | None:
        """Return the trace with the highest speed-up among the latest traces that passed; None if there is none.

        Traces with full assurance come before unconfirmed traces. If speed-ups are equal, for example without a
        measured reference, the lower latency wins. Traces that `ReportedTrace.may_be_best` refuses are skipped, such as
        quick looks.

        With the default bounds, only the verdict counts. A different bound also limits the largest error, as in
        `filter_traces`. The largest relative error of a correct output can be huge near zero. The judge fails an
        element only if its absolute error and its relative error are both too large.

        Args:
            axes: sizes of the var axes that a workload must have.
            max_abs_error: bound on max_absolute_error.
            max_rel_error: bound on max_relative_error.
            def_name: an alias of `definition`.
        """
        atol = None if max_abs_error == DEFAULT_BOUND else max_abs_error
        rtol = None if max_rel_error == DEFAULT_BOUND else max_rel_error
        ranked = [
            item
            for item in self._results(definition or def_name)
            if item.is_passed and item.latency_ms is not None and item.may_be_best
            if (axes or {}).items() <= item.trace.workload.axes.items() and _is_within(item, atol, rtol)
        ]
        best = max(ranked, key=_merit, default=None)
        return to_trace(best.trace) if best is not None else None

    summary = scores.summarise
    rank_authors = scores.rank_authors
    get_author_score = scores.get_author_score
    get_solution_score = scores.get_solution_score
    export_apply = export_apply
    add_traces = adding.add_traces
    add_workload_traces = adding.add_workload_traces
    add_workload_blob_tensor = adding.add_tensors
    get_workload_blob_tensor = adding.read_tensors

    def keep_traces(self, traces: Iterable[Trace]) -> None:
        """Add traces in memory, without a check. Callers pass traces that are on disk already, or that must not be
        written."""
        for trace in traces:
            self.traces.setdefault(trace.definition, []).append(trace)

    def without_traces(self) -> TraceSet:
        """Return a set with the same definitions, solutions and workloads, and without traces."""
        return replace(
            self,
            definitions=dict(self.definitions),
            solutions={name: list(items) for name, items in self.solutions.items()},
            workloads={name: list(items) for name, items in self.workloads.items()},
            traces={},
            issues=list(self.issues),
        )

    def backup_traces(self) -> list[Path]:
        """Rename the traces/ folder of each root to a name with the time, and clear the traces in memory."""
        stamp = datetime.now(timezone.utc).strftime("%Y%m%d_%H%M%S")
        found = [root / TRACES for root in self.roots if (root / TRACES).is_dir()]
        moved = [folder.rename(_free_name(folder.with_name(f"{TRACES}_bak_{stamp}"))) for folder in found]
        self.traces = {}
        return moved

    def _results(self, definition: str | None) -> list[Result]:
        if definition is None:
            raise TypeError("the name of a definition is missing")
        return list_results(None, find_latest(self.all_traces(definition)))


def _merit(result: Result) -> tuple[bool, float, float]:
    return result.measurement.is_full, result.speedup_factor, -(result.latency_ms or 0.0)


def _is_within(result: Result, atol: float | None, rtol: float | None) -> bool:
    """Return whether the largest errors of a verdict are known and within bounds. The bound None accepts any error."""
    correctness = result.evaluation.correctness
    return correctness is not None and (
        (atol is None or correctness.max_absolute_error <= atol)
        and (rtol is None or correctness.max_relative_error <= rtol)
    )


def _free_name(path: Path) -> Path:
    candidates = chain([path], (path.with_name(f"{path.name}_{index}") for index in count(1)))
    return next(candidate for candidate in candidates if not os.path.lexists(candidate))
