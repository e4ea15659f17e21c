"""`compare`: says whether B is faster than A, by how much, and how sure that is; or fails where it is slower."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flashinfer_bench.cli.args import find_output, is_set_named, open_trace_set
from flashinfer_bench.cli.drafts import describe_draft, read_hints
from flashinfer_bench.cli.exit_codes import FAILED, RAN
from flashinfer_bench.cli.flags.compare import BUDGET_S
from flashinfer_bench.cli.output import write_err, write_out
from flashinfer_bench.cli.render import (
    ABSENT,
    Column,
    available_width,
    count,
    format_latency,
    render_table,
    shorten_uuid,
    wrap_line,
)
from flashinfer_bench.cli.settings import naming_flags, read_config
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.store.drafts import Draft
from flashinfer_bench.data.store.jsonl import write_whole
from flashinfer_bench.data.store.layout import DEFINITIONS
from flashinfer_bench.errors import Fault, Misuse
from flashinfer_bench.examine.compare.comparison import ComparedSides, Row
from flashinfer_bench.examine.compare.documents import (
    compare_document,
    describe_decision,
    describe_interval,
    render_junit,
    render_markdown,
)
from flashinfer_bench.examine.compare.measuring import Measuring, measure
from flashinfer_bench.examine.compare.recorded import compare_recorded
from flashinfer_bench.examine.compare.sides import Contender, find_sides, pair_up
from flashinfer_bench.report.decision import THRESHOLD, UNKNOWN

MEASURING: Final = ("--budget", "--devices", "--config", "--iterations", "--num-trials", "--sandbox")
"""Flags that say how to measure, and so nothing of recorded traces."""
OF_SOURCES: Final = ("--definitions", "--entry", "--language")
"""Flags that say what a source file or a folder leaves out, and so nothing of other sides."""


def execute(args: argparse.Namespace) -> int:
    """Compare, and print what came of it."""
    if args.budget is not None and args.budget <= 0:
        raise Misuse("--budget: needs seconds above 0")
    threshold = args.threshold or args.fail_if_slower or THRESHOLD
    _check_order(args)
    named = open_trace_set(args) if is_set_named(args) else None
    if args.junit:
        find_output(args.junit, args)  # refuses links in a set, before anything is measured
    first, second = find_sides((args.first, args.second), named, read_hints(args))
    _tell_drafts(args, named, [one.draft for one in (first, second) if one.draft is not None])
    if args.recorded:
        _refuse_measuring_flags(args)
        comparison = compare_recorded(first, second, threshold, args.workloads)
    else:
        comparison = _measure(args, first, second, threshold, named)
    slower = comparison.slower_than(args.fail_if_slower) if args.fail_if_slower else []
    _write(args, comparison, slower)
    return FAILED if slower or comparison.is_failed else RAN


def _check_order(args: argparse.Namespace) -> None:
    """Refuse a set that is named before the two sides: its place is behind them.

    Raises:
        Misuse: it is.
    """
    is_first = (Path(args.first) / DEFINITIONS).is_dir() and not Path(args.second).exists()
    if is_first and args.local and not Path(args.local[0]).exists():
        raise Misuse(f"{args.first} is a set: name it behind the two sides: {args.second} {args.local[0]} {args.first}")


def _refuse_measuring_flags(args: argparse.Namespace) -> None:
    given = [flag for flag in MEASURING if getattr(args, flag.lstrip("-").replace("-", "_"), None) is not None]
    if given:
        raise Misuse(f"{given[0]}: with --recorded nothing is measured")


def _tell_drafts(args: argparse.Namespace, trace_set: TraceSet | None, drafts: Sequence[Draft]) -> None:
    """Say what was found out of the sides that somebody edits.

    Raises:
        Misuse: a flag speaks of such a side, and there is none.
    """
    given = [flag for flag in OF_SOURCES if getattr(args, flag.lstrip("-"), None) is not None]
    if given and not drafts:
        raise Misuse(f"{given[0]}: neither side is a source file, or a folder without a manifest")
    for draft in drafts:
        if trace_set is not None:  # without a set there is no draft
            describe_draft(draft, trace_set, is_quiet=args.quiet)


def _measure(
    args: argparse.Namespace, first: Contender, second: Contender, threshold: float, named: TraceSet | None
) -> ComparedSides:
    pairings = pair_up(first, second)
    budget = BUDGET_S if args.budget is None else args.budget
    trace_set = named if named is not None else first.trace_set
    if trace_set is None:
        raise Misuse("no trace set with the definition and its workloads: give --local PATH")
    wanted = Measuring(threshold, budget, tuple(args.workloads) if args.workloads else None)
    config = read_config(args)
    tell = (lambda _line: None) if args.quiet else write_err
    equal = sum(one.first.digest() == one.second.digest() for one in pairings)
    if equal:
        which = "both sides have" if equal == len(pairings) else f"in {equal} of {len(pairings)} pairs both sides have"
        tell(f"{which} the same sources: that shows how far equal code differs on this machine")
    with naming_flags(args):
        return measure(trace_set, pairings, config, wanted, tell=tell)


def _write(args: argparse.Namespace, comparison: ComparedSides, slower: list[str]) -> None:
    sides = (args.first, args.second)
    if args.junit:
        try:
            place = find_output(args.junit, args)
            write_whole(place.path, render_junit(comparison, slower), root=place.root)
        except OSError as error:
            raise Fault(f"{args.junit} cannot be written: {error.strerror}") from error
    if args.format == "json":
        document = compare_document(comparison, sides, slower)
        write_out(json.dumps(document, indent=2, allow_nan=False) + "\n")
    elif args.format == "md":
        write_out(render_markdown(comparison, sides, slower))
    else:
        write_out(render_comparison(comparison, sides, available_width(sys.stdout)))
        for where in slower:
            write_err(f"slower than allowed: {where}")


def render_comparison(comparison: ComparedSides, sides: tuple[str, str], width: int) -> str:
    """Lay the comparison out as a table with notes."""
    columns = [Column("Workload"), Column("A", True), Column("B", True), Column("B/A", True), Column("B is")]
    rows = [_cells(row, comparison) for row in comparison.rows]
    overall = comparison.overall
    if overall is not None and len(rows) > 1:
        told = describe_decision(overall, comparison)
        rows.append(["over all", "", "", describe_interval(overall), told])
    pairs = sum(row.ratio.pairs for row in comparison.rows if row.ratio is not None)
    how = f"measured, {count(pairs, 'pair')} of blocks in {comparison.seconds:.0f} s" if pairs else comparison.how
    notes = [
        f"A: {sides[0]}; B: {sides[1]}; on {comparison.hardware}; {how}",
        "B/A: latency of B over that of A, with its 95 % interval; over all: geometric mean",
        *(f"{row.workload}: {row.problem}" for row in comparison.problems),
    ]
    return render_table(columns, rows, width) + "\n" + "".join(f"{wrap_line(note, width)}\n" for note in notes)


def _cells(row: Row, comparison: ComparedSides) -> list[str]:
    name = " ".join(filter(None, [row.label, shorten_uuid(row.workload)]))
    if row.ratio is None:
        return [name, ABSENT, ABSENT, ABSENT, UNKNOWN if row.is_unmeasured else "not compared"]
    times = [format_latency(row.first_ms), format_latency(row.second_ms)]
    return [name, *times, describe_interval(row.ratio), describe_decision(row.ratio, comparison)]
