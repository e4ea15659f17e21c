"""Resolves the arguments of a command: trace sets, parts of sets, recorded jobs, outputs.

A name that a set lacks is an error. The message has the nearest known name. `settings.py` resolves settings.
`drafts.py` resolves the solutions that the user edits.
"""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from flashinfer_bench.base.files.writing import WriteRefused, check_location
from flashinfer_bench.cli.output import write_err
from flashinfer_bench.cli.parser import PROGRAM
from flashinfer_bench.data import Definition, LoadIssue, Trace, TraceSet, load_jsonl_file
from flashinfer_bench.data.adapted import ENGINES
from flashinfer_bench.data.definition import normalise_op_type
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store.jsonl import write_whole
from flashinfer_bench.data.store.layout import DEFINITIONS, find_set_around, path_part
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.data.workload import find_named
from flashinfer_bench.env import DATASET_VARIABLE, get_fib_dataset_path
from flashinfer_bench.errors import DataSetError, Fault, UsageError

SHOWN_WARNINGS: Final = 20


def open_trace_set(args: Namespace) -> TraceSet:
    """Load and merge the sets of the command line, print their problems, and refuse an empty set."""
    trace_set = load_trace_set(args)
    errors_only = not trace_set.definitions or getattr(args, "quiet", False)
    write_err(*describe_issues([one for one in trace_set.issues if one.severity == "error" or not errors_only]))
    if not trace_set.definitions:
        roots = ", ".join(map(str, trace_set.roots))
        raise DataSetError(f"{roots}: no definition here; a trace set has {DEFINITIONS}/<op_type>/<definition>.json")
    return trace_set


def load_trace_set(args: Namespace) -> TraceSet:
    """Load and merge the sets of the command line. The field `issues` of the result has the problems of the files."""
    loaded = [open_folder(args, folder) for folder in named_folders(args)]
    return loaded[0] if len(loaded) == 1 else TraceSet.merge(loaded)


def open_folder(args: Namespace, folder: Path, precision: str = "fp32") -> TraceSet:
    """Read a set, or a folder of another engine. The user has to trust the code of such a folder.

    Raises:
        UsageError: --trust-definitions is missing.
    """
    layout = getattr(args, "layout", None)
    if not folder.exists() or (layout is None and (folder / DEFINITIONS).is_dir()):
        return TraceSet.from_path(folder)
    # The readers below import yaml, which a set does not need.
    from flashinfer_bench.data.gpumode.problems import GpuMode
    from flashinfer_bench.data.kernelbench.tasks import KernelBench
    from flashinfer_bench.data.problems.folder import find_problems, read_folder

    engines = [one for one in (GpuMode(), KernelBench(precision)) if layout in (None, one.name)]
    engine = next((one for one in engines if layout or any(find_problems(folder, one, []))), None)
    if engine is None:
        return TraceSet.from_path(folder)
    if not getattr(args, "trust_definitions", False):
        convert = shlex.join([PROGRAM, "convert", str(folder), "--from", engine.name])
        raise UsageError(
            f"to find the shapes of {ENGINES[engine.name][1]}, the code in {folder} runs with all your rights. "
            f"If you trust it: `{convert} --output SET --trust-definitions`, or `run` with --trust-definitions"
        )
    return read_folder(folder, engine)


def named_folders(args: Namespace) -> list[Path]:
    """Return the folders that --local or the environment names, without duplicates."""
    if not is_set_named(args):
        raise UsageError(f"no trace set: give --local PATH, or set {DATASET_VARIABLE}")
    named: list[str] = args.local or [os.environ[DATASET_VARIABLE]]
    return list(dict.fromkeys(map(Path, named)))


def is_set_named(args: Namespace) -> bool:
    """Return whether the command line or the environment names a folder."""
    return bool(args.local or os.environ.get(DATASET_VARIABLE))


def has_nothing(trace_set: TraceSet) -> bool:
    """Return whether a set is empty."""
    return not any((trace_set.definitions, trace_set.solutions, trace_set.workloads, trace_set.traces))


def describe_issues(issues: Sequence[LoadIssue], shown_warnings: int = SHOWN_WARNINGS) -> list[str]:
    """Return a line for each error, a line for each of the first warnings, and the number of warnings that are not
    shown."""
    errors = [str(issue) for issue in issues if issue.severity == "error"]
    warnings = [str(issue) for issue in issues if issue.severity == "warning"]
    more = len(warnings) - shown_warnings
    rest = f"warning: {more} more warnings; `flashinfer-bench validate` shows all of them"
    return [*errors, *warnings[:shown_warnings], *([rest] if more > 0 else [])]


def choose_definitions(trace_set: TraceSet, args: Namespace) -> list[Definition]:
    """Return the definitions that --definitions and --op-types select, ordered by op type and name."""
    kinds = {item.name: normalise_op_type(item.op_type) for item in trace_set.definitions.values()}
    names, op_types = _names_in(args, "definitions"), list(map(normalise_op_type, _names_in(args, "op_types")))
    refuse_unknown(("definition", names, kinds), ("op type", op_types, kinds.values()))
    kept = [
        item
        for item in trace_set.definitions.values()
        if (not names or item.name in names) and (not op_types or kinds[item.name] in op_types)
    ]
    return sorted(kept, key=lambda item: (item.op_type, item.name))


def without_unread(trace_set: TraceSet, names: Iterable[str], known: Collection[str]) -> list[str]:
    """Return the names of definitions or of solutions without those whose files cannot be read. `known` are read."""
    unread = {issue.file.stem for issue in trace_set.issues if issue.severity == "error"}
    return [name for name in names if name in known or path_part(name) not in unread]


def choose_traces(trace_set: TraceSet, args: Namespace) -> list[AnyTrace]:
    """Return the traces that the name flags select, in the order of the files."""
    traces = [trace for item in choose_definitions(trace_set, args) for trace in trace_set.all_traces(item.name)]
    solutions, wanted = _names_in(args, "solutions"), _names_in(args, "authors")
    authors = {item.name: item.author for item in trace_set.all_solutions()}
    named = {name: find_named(name, traces, attrgetter("workload")) for name in _names_in(args, "workloads")}
    chosen = {id(trace) for found in named.values() for trace in found}
    uuids = {trace.workload.uuid for trace in traces}
    refuse_unknown(
        ("solution", solutions, {*authors, *(trace.solution for trace in traces)}),
        ("author", wanted, authors.values()),
        ("workload with a trace", [name for name, found in named.items() if not found], uuids),
    )
    return [
        trace
        for trace in traces
        if (not solutions or trace.solution in solutions)
        and (not wanted or authors.get(trace.solution or "") in wanted)
        and (not named or id(trace) in chosen)
    ]


def _names_in(args: Namespace, flag: str) -> Sequence[str]:
    return getattr(args, flag, None) or ()


def refuse_unknown(*asked: tuple[str, Iterable[str], Collection[str | None]]) -> None:
    """Refuse names that a set does not have.

    Args:
        *asked: for each flag the kind of names, such as "op type", then the given names and the known names.

    Raises:
        DataSetError: names are unknown; the message has all unknown names.
    """
    problems = []
    for kind, names, known in asked:
        flag = f"--{kind.partition(' with')[0].replace(' ', '-')}s"
        for name in (name for name in names if name not in known):
            hint = did_you_mean(name, filter(None, known)) or "; `flashinfer-bench list` shows what there is"
            problems.append(f"{flag}: the trace set has no {kind} {name!r}{hint}")
    if problems:
        raise DataSetError("\n".join(problems))


def read_recorded(text: str) -> list[Trace]:
    """Return the verdicts that `FILE` or `FILE:LINE` names.

    Raises:
        UsageError: the file lacks the line, or there is no verdict in the file or line.
        DataSetError: the file cannot be read.
    """
    path, _, number = text.rpartition(":")
    if not path or not number.isdigit() or Path(text).exists():
        path, number = text, ""
    traces = load_jsonl_file(Trace, path)
    if number:
        if not 1 <= int(number) <= len(traces):
            raise UsageError(f"{path} has {len(traces)} lines; there is no line {number}")
        traces = [traces[int(number) - 1]]
    judged = [trace for trace in traces if trace.evaluation is not None and trace.solution is not None]
    if not judged:
        raise UsageError(f"{text} holds no verdict that could be judged again")
    return judged


class Output(NamedTuple):
    """A file or a folder that a command writes because the user names it."""

    path: Path
    """Absolute, and without `..`."""
    root: Path | None
    """The trace set that contains the path; None outside of sets. Links in a set are not followed."""

    def write(self, text: str | bytes, hint: str = "") -> None:
        """Write the file completely or not at all.

        Raises:
            DataSetError: the path leads through a link in a set.
            Fault: the file cannot be written.
        """
        try:
            write_whole(self.path, text, root=self.root)
        except WriteRefused as error:
            raise DataSetError(f"{self.path} cannot be written: {error.strerror}") from error
        except OSError as error:
            raise Fault(f"{self.path} cannot be written: {error.strerror}{hint}") from error


def find_output(path: Path | str, args: Namespace | None = None) -> Output:
    """Find the trace set around a file or folder to write. The path need not exist.

    Args:
        args: the command's arguments. Every folder of `--local` counts as a set, even an empty folder.

    Raises:
        UsageError: in a set, the path is a link or leads through a link.
    """
    named = getattr(args, "local", None) or ()
    sets = [*map(Path, [named] if isinstance(named, str) else named), get_fib_dataset_path()]
    whole, root = find_set_around(Path(path), sets)
    if root is not None:
        try:
            check_location(whole, root)
        except WriteRefused as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}, or name the target itself") from error
        except OSError:
            pass  # the writer reports this error
    return Output(whole, root)
