"""`report merge`: several sets in one."""

from __future__ import annotations

import argparse
from pathlib import Path

from flashinfer_bench.bench.tolerances import merge_tolerances
from flashinfer_bench.cli.args import describe_issues, find_output, has_nothing, named_folders
from flashinfer_bench.cli.exit_codes import FAILED, RAN
from flashinfer_bench.cli.output import write_err, write_out
from flashinfer_bench.cli.render import count
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.store.layout import TOLERANCES_FILE
from flashinfer_bench.data.store.new_sets import merge_sets
from flashinfer_bench.errors import DataSetError


def execute_merge(args: argparse.Namespace) -> int:
    """Write the sets as one; return 1 if something of them could not be read."""
    parts = [TraceSet.from_path(folder) for folder in named_folders(args)]
    errors = [issue for part in parts for issue in part.issues if issue.severity == "error"]
    for line in describe_issues(errors):
        write_err(line)
    if all(map(has_nothing, parts)):
        raise DataSetError("\n".join(f"{part.root}: there is nothing to merge" for part in parts))
    find_output(args.output, args)  # refuses links in a set
    tolerances = merge_tolerances(parts)
    done = merge_sets(parts, Path(args.output), {TOLERANCES_FILE: tolerances} if tolerances else {})
    for lost in done.lost:
        write_err(f"not carried over: {lost}")
    nouns = ("definition", "solution", "workload", "trace", "blob")
    write_out(f"{done.output}: {', '.join(count(getattr(done, f'{noun}s'), noun) for noun in nouns)}\n")
    return FAILED if errors or done.lost else RAN
