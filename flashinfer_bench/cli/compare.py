"""`compare`: says whether B is faster than A, by how much, and with which confidence; can fail if B is too slow."""

from __future__ import annotations

import argparse
from math import inf
from typing import TYPE_CHECKING, Final

from flashinfer_bench.cli.output import FAILED, RAN, write_err, write_json, write_out
from flashinfer_bench.cli.parser import (
    EXIT_CODES,
    GITHUB_FLAG,
    QUIET_FLAG,
    SOURCE_FLAGS,
    THRESHOLD_HELP,
    Parser,
    add_flags,
    add_format,
    add_local,
    add_names,
    add_sandbox,
)
from flashinfer_bench.cli.settings import CONFIG_FLAG, add_setting
from flashinfer_bench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.cli.github import GitHubReport
    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.examine.compare.result import Comparison
    from flashinfer_bench.examine.compare.sides import Contender

MEASURING: Final = ("budget", "devices", "config", "iterations", "num_trials", "sandbox")
"""Flags for a new measurement. They are refused with `--recorded`."""
OF_SOURCES: Final = ("definitions", "entry", "language")
"""Flags about a source file or folder. They are refused if neither A nor B is a source file or folder."""


def declare_compare(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Say whether B is faster than A, by how much, and with which confidence. A and B are two solutions (names,\n"
        "source files, folders, packed files), two authors, two sets, or with --recorded two files of traces. They\n"
        "are timed interleaved, A B B A ..., each block in its own worker, until each ratio is decided or the budget\n"
        "is spent.\n"
        f"{EXIT_CODES} A solution that does not pass is a failure.",
        usage="%(prog)s A B [--local PATH] [flags]",
        example="compare plain_rmsnorm_h4096 torch_rmsnorm_h4096 --local flashinfer-trace",
        execute=execute,
    )
    add_flags(parser, {"A": "baseline: the present version, for example"})
    add_flags(parser, {"B": "candidate: the new version, for example"})
    add_local(parser)
    how = parser.add_argument_group("how")
    flags = {
        "--recorded": "compare recorded traces, without measuring",
        "--threshold X": THRESHOLD_HELP,
        "--budget F": "seconds of measuring, without the start (default: 60)",
        "--workloads --workload UUID...": "only these workloads: uuids, or their beginnings",
    }
    add_flags(how, flags)
    add_names(how, "--devices", "use the first of these devices: 0, cuda:1, a GPU's uuid, or cpu")
    add_flags(how, CONFIG_FLAG)
    add_setting(how, "iterations")
    add_setting(how, "num_trials", "trials of a block, each with its own inputs (default: 1)")
    add_sandbox(how, default=argparse.SUPPRESS)
    text = "FILE.py, FILE.cu, FILE.cpp, or a folder of sources. Without these flags the sources decide"
    drafts = parser.add_argument_group("sources that you edit", text)
    text = "its definition (default: that of the other side, or found by its parameters or name)"
    add_names(drafts, "--definitions", text)
    add_flags(drafts, SOURCE_FLAGS)
    out = parser.add_argument_group("result")
    text = "exit with 1 if B is slower by more, on a workload or over all; also the default of --threshold"
    add_flags(out, {"--fail-if-slower X": text})
    add_format(out, "md")
    add_flags(
        out, {"--junit FILE": "also write JUnit XML, with a test case for each workload"} | QUIET_FLAG | GITHUB_FLAG
    )


def execute(args: argparse.Namespace) -> int:
    """Compare, and print the result."""
    from flashinfer_bench.cli.args import find_output, is_set_named, open_trace_set
    from flashinfer_bench.cli.drafts import describe_draft, read_hints
    from flashinfer_bench.examine.compare.recorded import compare_recorded
    from flashinfer_bench.examine.compare.sides import find_sides
    from flashinfer_bench.report.decision import THRESHOLD

    if args.budget is not None and args.budget <= 0:
        raise UsageError("--budget: needs seconds above 0")
    words = (args.a, args.b)
    named = open_trace_set(args) if is_set_named(args) else None
    junit = find_output(args.junit, args) if args.junit else None  # refuses links in a set before measuring
    sides = find_sides(words, named, read_hints(args))
    drafts = [side.draft for side in sides if side.draft is not None and not side.draft.is_packed]
    if not drafts:
        _refuse(args, OF_SOURCES, "neither side is a source file, or a folder without a manifest")
    for draft in drafts:
        if named is not None:  # drafts need the definitions of a set
            describe_draft(draft, named.definitions, is_quiet=args.quiet)
    threshold = args.threshold or args.fail_if_slower or THRESHOLD
    if args.recorded:
        _refuse(args, MEASURING, "with --recorded nothing is measured")
        comparison = compare_recorded(*sides, threshold, args.workloads)
    else:
        comparison = _measure(args, sides, threshold, named)
    slower = comparison.slower_than(args.fail_if_slower) if args.fail_if_slower else []
    if junit is not None:
        junit.write(comparison.junit(slower))
    if args.format == "json":
        write_json(comparison.document(words, slower))
    elif args.format == "md":
        write_out(comparison.markdown(words, slower))
    else:
        write_out(render_comparison(comparison, words))
        write_err(*(f"slower than allowed: {where}" for where in slower))
    if args.github:
        _annotate(args.github, comparison, words, slower, sides, named)
    return FAILED if slower or comparison.is_failed else RAN


def _annotate(
    report: GitHubReport,
    comparison: Comparison,
    words: tuple[str, str],
    slower: Sequence[str],
    sides: tuple[Contender, Contender],
    named: TraceSet | None,
) -> None:
    """Add a comparison to a report for GitHub. The arguments are variables of `execute`."""
    from flashinfer_bench.cli.github import Annotation, find_source
    from flashinfer_bench.cli.verdicts import head_of
    from flashinfer_bench.report.decision import FASTER, SAME, UNKNOWN

    decision, said = UNKNOWN, ""
    for row in comparison.all_rows:
        decision = row.ratio.decide(comparison.threshold) if row.ratio else UNKNOWN
        is_error = row.workload in slower or (row.problem and not row.is_unmeasured)
        said = ": ".join(filter(None, comparison.describe(row)))
        if not is_error and decision in (FASTER, SAME):
            continue
        text = row.problem or f"B over A: {said}"
        side = sides[0 if text.startswith("A ") else 1]
        file, solution = side.draft and side.draft.path, side.solutions[0] if side.kind == "solution" else None
        if solution and named and not file:
            file = named.solution_files.get(solution.name)
        weight = row.ratio.ratio if row.ratio else inf
        at = find_source(solution, file, text)
        report.annotations.append(Annotation("error" if is_error else "warning", text, row.name, *at, weight))
    head = head_of([comparison.standing])
    report.count = f"{head[0] if head else comparison.hardware}: {words[1]} beside {words[0]}: {said}"
    report.summary = "".join(f"#### {line}\n\n" for line in head) + comparison.markdown(words, slower)
    verdict = "slower" if slower else "failed" if comparison.is_failed else decision
    report.output = f"verdict={'unknown' if verdict == UNKNOWN else verdict}\n"


def _refuse(args: argparse.Namespace, flags: tuple[str, ...], why: str) -> None:
    for flag in flags:
        if getattr(args, flag, None) not in (None, ()):
            raise UsageError(f"--{flag.replace('_', '-')}: {why}")


def _measure(
    args: argparse.Namespace, sides: tuple[Contender, Contender], threshold: float, named: TraceSet | None
) -> Comparison:
    from flashinfer_bench.cli.settings import naming_flags, read_config
    from flashinfer_bench.examine.compare.measuring import measure
    from flashinfer_bench.examine.compare.sides import pair_up

    pairings = pair_up(*sides)
    trace_set = named if named is not None else sides[0].trace_set
    if trace_set is None:
        raise UsageError("no trace set with the definition and its workloads: give --local PATH")
    progress = (lambda _line: None) if args.quiet else write_err
    equal = sum(one.first.digest() == one.second.digest() for one in pairings)
    if equal:
        which = "both sides have" if equal == len(pairings) else f"in {equal} of {len(pairings)} pairs both sides have"
        progress(f"{which} the same sources: that shows how far equal code differs on this machine")
    how = {"threshold": threshold, "budget_s": args.budget or 60.0, "workloads": args.workloads, "progress": progress}
    config = read_config(args)
    with naming_flags(args):
        return measure(trace_set, pairings, config, **how)


def render_comparison(comparison: Comparison, sides: tuple[str, str]) -> str:
    """Render the comparison as a table with notes."""
    from flashinfer_bench.cli import tables
    from flashinfer_bench.cli.verdicts import head_of

    names = tables.name_workloads((row.definition, row.workload, row.axes) for row in comparison.rows)
    rows = [
        [
            f"{row.solutions or ''} {names.get((row.definition, row.workload), row.workload)}".strip(),
            *("" if time is None else tables.format_latency(time) for time in (row.a_ms, row.b_ms)),
            *comparison.describe(row),
        ]
        for row in comparison.all_rows[: None if len(comparison.rows) > 1 else 1]
    ]
    pairs = sum(row.ratio.pairs for row in comparison.rows if row.ratio is not None)
    blocks = f"measured, {tables.count(pairs, 'pair')} of blocks in {comparison.seconds:.0f} s"
    notes = [
        f"A: {sides[0]}; B: {sides[1]}; on {comparison.hardware}; {blocks if pairs else comparison.how}",
        "B/A: latency of B over that of A, with its 95 % interval; over all: geometric mean",
        *(f"{row.workload}: {row.problem}" for row in comparison.rows if row.problem),
        *([f"to decide: {comparison.need}"] if comparison.need else []),
        *(f"times of {warning}" for warning in comparison.warnings),
    ]
    table = tables.render_table(("Workload", "#A", "#B", "#B/A", "B is"), rows)
    return tables.join_sections(head_of([comparison.standing]), table, list(map(tables.wrap_line, notes)))
