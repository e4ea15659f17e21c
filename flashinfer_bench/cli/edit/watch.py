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
from flashinfer_bench.errors import FlashInferBenchError

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
    """Judge each time a draft is saved, or a file that it is judged by, until Ctrl-C; return the latest exit code.

    Args:
        args: what was typed; `judge` gets a copy each time.
        judge: judges what the arguments name, and returns the exit code.
    """
    paths, code = list_draft_paths(args), 0
    beside = [Path(args.config)] if args.config else []
    trace_set: TraceSet | None = None
    try:
        while code != INTERRUPTED:
            given = argparse.Namespace(**vars(args))
            seen = take_stamp([*paths, *beside])
            try:
                trace_set = trace_set or open_trace_set(given)
                code = judge(given, trace_set)
            except FlashInferBenchError as error:
                write_problems(str(error))
                code = error.exit_code
            if code != INTERRUPTED:
                new = _list_set_files(trace_set, given.solutions) - set(beside) if trace_set is not None else set()
                beside += new
                seen |= take_stamp(new)
                write_err(f"waiting until {', '.join(map(str, paths))} is saved; Ctrl-C ends")
                now = wait_for_change(paths, seen, beside=beside)
                if any(now.get(str(file)) != seen.get(str(file)) for file in beside):
                    trace_set = None  # it is read anew
    except KeyboardInterrupt:
        pass
    return code


def _list_set_files(trace_set: TraceSet, solutions: Iterable[str]) -> set[Path]:
    """Return the files of the set, there or not, that decide how solutions are judged."""
    files = {root / TOLERANCES_FILE for root in trace_set.roots}
    known = [trace_set.get_solution(name) for name in solutions]
    for name in {one.definition for one in known if one is not None}:
        op_type = trace_set.definitions[name].op_type
        files.add(trace_set.definition_files[name])
        files |= {workloads_path(root, op_type=op_type, definition=name) for root in trace_set.roots}
    return files


def wait_for_change(
    paths: Sequence[Path], before: Stamp, sleep: Callable[[float], object] = time.sleep, *, beside: Sequence[Path] = ()
) -> Stamp:
    """Return when a file differs from its stamp, nothing has changed for one more look, and each path is there.

    Args:
        paths: what somebody edits.
        before: the stamp of `paths` and `beside` that was judged.
        sleep: waits so many seconds.
        beside: other files that count, whether they are there or not.
    """
    last = before
    while True:
        sleep(LOOK_EVERY_S)
        now = take_stamp([*paths, *beside])
        if now != before and now == last and all(path.exists() for path in paths):
            return now
        last = now
