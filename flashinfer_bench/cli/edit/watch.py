"""Judges again whenever somebody saves a file: looks at times and sizes many times a second."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.trees import walk_files
from flashinfer_bench.cli.args import open_trace_set
from flashinfer_bench.cli.drafts import list_draft_paths
from flashinfer_bench.cli.exit_codes import INTERRUPTED
from flashinfer_bench.cli.output import write_err, write_problems
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.store.layout import TOLERANCES_FILE, workloads_path
from flashinfer_bench.data.store.pack import is_passed_over
from flashinfer_bench.errors import DataSetError, FlashInferBenchError

LOOK_EVERY_S: Final = 0.05
"""Seconds between two looks. It is added to the time from saving to the verdict."""

Stamp = dict[str, tuple[int, int]]
"""Path → time of the last change, and size."""


def take_stamp(paths: Iterable[Path]) -> Stamp:
    """Return what a save changes: of each file, and of each file below each folder."""
    stamp: Stamp = {}
    for path in paths:
        files = walk_files(path, lambda *_: None, passes_over=is_passed_over) if path.is_dir() else [path]
        for file in files:
            try:
                status = file.stat()
            except OSError:
                continue  # an editor replaces it at this moment
            stamp[str(file)] = (status.st_mtime_ns, status.st_size)
    return stamp


def keep_judging(args: argparse.Namespace, judge: Callable[[argparse.Namespace, TraceSet], int]) -> int:
    """Judge each time a draft is saved, or what it is judged by, until Ctrl-C; return the code of the last verdicts.

    Args:
        args: what was typed; `judge` gets a copy each time.
        judge: judges what the arguments name, and returns the exit code.
    """
    paths = list_draft_paths(args)
    code = 0
    beside = [Path(args.config)] if args.config else []
    of_set: list[Path] = []
    trace_set: TraceSet | None = None
    try:
        while True:
            given = argparse.Namespace(**vars(args))
            seen = take_stamp([*paths, *beside, *of_set])
            try:
                trace_set = trace_set or _open_whole(given, of_set)
                code = judge(given, trace_set)
            except FlashInferBenchError as error:
                write_problems(str(error))
                code = error.exit_code
            if code == INTERRUPTED:
                return code
            if trace_set is not None:
                new = [file for file in _list_set_files(trace_set, given.solutions) if file not in of_set]
                of_set += new
                seen |= take_stamp(new)
            write_err(f"waiting until {', '.join(map(str, paths))} is saved; Ctrl-C ends")
            now = wait_for_change(paths, seen, beside=[*beside, *of_set])
            if any(now.get(str(file)) != seen.get(str(file)) for file in of_set):
                trace_set = None  # it is read anew
    except KeyboardInterrupt:
        return code


def _open_whole(args: argparse.Namespace, needed: Sequence[Path]) -> TraceSet:
    """Open the set, and refuse one in which a file that counts is broken, as in the middle of a save.

    Raises:
        DataSetError: one is.
    """
    trace_set = open_trace_set(args)
    broken = [str(issue.file) for issue in trace_set.issues if issue.severity == "error" and issue.file in needed]
    if broken:
        raise DataSetError(f"nothing was judged, since {' and '.join(dict.fromkeys(broken))} cannot be read")
    return trace_set


def _list_set_files(trace_set: TraceSet, solutions: Iterable[str]) -> list[Path]:
    """Return the files of the set, there or not, that decide how solutions are judged."""
    files = [root / TOLERANCES_FILE for root in trace_set.roots]
    known = [trace_set.get_solution(name) for name in solutions]
    for name in sorted({one.definition for one in known if one is not None}):
        op_type = trace_set.definitions[name].op_type
        files.append(trace_set.definition_files[name])
        files += [workloads_path(root, op_type=op_type, definition=name) for root in trace_set.roots]
    return files


def wait_for_change(
    paths: Iterable[Path],
    before: Stamp,
    sleep: Callable[[float], object] = time.sleep,
    *,
    beside: Iterable[Path] = (),
) -> Stamp:
    """Return when a file differs from its stamp, nothing has changed for one more look, and each path is there.

    Args:
        paths: what somebody edits.
        before: the stamp of `paths` and `beside` that was judged.
        sleep: waits so many seconds.
        beside: other files that count, whether they are there or not.
    """
    edited = list(paths)
    watched = [*edited, *beside]
    last = before
    while True:
        sleep(LOOK_EVERY_S)
        now = take_stamp(watched)
        if now != before and now == last and all(path.exists() for path in edited):
            return now
        last = now
