"""`build`: compiles the solutions of a set, or single files, without running them, and tells the result of each.

The build farm that `run` uses compiles them, into the same cache.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from flashinfer_bench.base.host import usable_cores
from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.bench.planning.selection import select
from flashinfer_bench.cli.args import is_set_named, open_trace_set
from flashinfer_bench.cli.output import one_interrupt, write_err, write_json, write_out
from flashinfer_bench.cli.parser import EXIT_CODES, PROGRAM, Parser, add_format, add_local, add_names
from flashinfer_bench.cli.render import (
    Column,
    available_width,
    count,
    format_duration,
    render_table,
    some,
    wrap_line,
)
from flashinfer_bench.cli.settings import add_setting, naming_flags, read_config
from flashinfer_bench.compile import BuildFailure, BuildFarm, BuildTarget, Built, find_toolchain, why_not_buildable
from flashinfer_bench.compile.requirements import NAMED
from flashinfer_bench.data import Definition, Solution, SupportedLanguages, load_json_file
from flashinfer_bench.data.entry import COMPILED, check_entry, find_binding
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.env import cache_root
from flashinfer_bench.errors import DataSetError, Misuse

FORMAT_VERSION: Final = 1
"""Version of the JSON document. 1: the first."""
FILTERS: Final = ("definitions", "op_types", "solutions", "authors")
Result = Literal["built", "cached", "failed", "fault", "skipped"]
WORDS: Final[dict[Result, str]] = {
    "built": "built",
    "cached": "built before",
    "failed": "FAILED",
    "fault": "no result",
    "skipped": "skipped",
}
"""The word for each result. The solution is to blame for `failed`, the machine for `fault`."""
COLUMNS: Final = (Column("Solution"), Column("Language"), Column("Binding"), Column("Result"), Column("Time", True))
MESSAGE_LINES: Final = 40


def declare_build(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Compile the solutions of a trace set, or single solution files, without running any. No GPU is\n"
        "needed: CUDA solutions are compiled for the GPUs here, else for sm_90a. What is built is kept for `run`.\n"
        "A solution for which something is missing here (a compiler, a package) is skipped with the reason.\n"
        f"{EXIT_CODES}",
        usage="%(prog)s [FILE ...] [--local PATH] [flags]",
        example=f"{PROGRAM} build --local flashinfer-trace --authors cuda --arch sm_80 sm_90a",
        execute=execute,
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="solution files (default: the solutions of the set)")
    add_local(parser)
    group = parser.add_argument_group("what to build", "one or more names each, separated by spaces or commas")
    add_names(group, "--definitions", "only solutions of these definitions")
    add_names(group, "--op-types", "only solutions of these op types")
    add_names(group, "--solutions", "only these solutions")
    add_names(group, "--authors", "only solutions of these authors")
    group = parser.add_argument_group("how")
    add_names(group, "--arch", "GPU architectures to compile CUDA solutions for, such as sm_90a (default: those here)")
    jobs_help = "compilers at once (default: as many as there are cores)"
    add_setting(group, "build_jobs", jobs_help)
    group.add_argument("--require-built", action="store_true", help="exit with 1 when anything was skipped, too")
    add_format(group)
    group.add_argument("--quiet", action="store_true", help="no progress; only errors and the result")
    parser.set_defaults(config=None)


class Item(NamedTuple):
    """A solution to build."""

    solution: Solution
    definition: Definition | None
    """None if no set was named. The arguments of the entry function are not counted then."""


@dataclass(frozen=True)
class BuildRow:
    """The result of one solution."""

    solution: Solution
    result: Result
    seconds: float = 0.0
    """Time of its compilers, in seconds, now or when it was first built."""
    message: str = ""
    """Why there is no artifact."""
    artifact: Path | None = None

    @property
    def binding(self) -> str | None:
        """The binding that connects it to Python; None for a solution in Python."""
        return find_binding(self.solution).binding.value if self.solution.spec.language in COMPILED else None


def execute(args: argparse.Namespace) -> int:
    """Build the solutions. Show each result when it is there, and all results at the end."""
    items = choose_solutions(args)
    target = choose_target(getattr(args, "arch", None))
    root = cache_root(os.environ).resolve()
    rows: list[BuildRow] = []
    started = time.monotonic()
    with one_interrupt():
        for row in build(items, root, target, jobs=read_config(args).build_jobs):
            rows.append(row)
            if not args.quiet:
                write_err(f"[{len(rows):>{len(str(len(items)))}}/{len(items)}] {describe_row(row)}")
    seconds = time.monotonic() - started
    counts = Counter(row.result for row in rows)
    if args.format == "json":
        write_json(
            {
                "version": FORMAT_VERSION,
                "cache": str(root),
                "architectures": [f"sm_{name}" for name in target.architectures],
                "seconds": round(seconds, 3),
                "counts": dict(counts),
                "solutions": [_document(row) for row in rows],
            }
        )
    else:
        write_out(render_rows(rows, target, seconds, available_width(sys.stdout)))
    bad = counts["failed"] + counts["fault"] + (counts["skipped"] if args.require_built else 0)
    return 1 if bad else 0


def choose_solutions(args: argparse.Namespace) -> list[Item]:
    """Return the solutions of the named files, or those of the set that the filters leave.

    Raises:
        Misuse: files or names do not exist, or are wrong. One error names all of them.
    """
    if not args.files:
        trace_set = open_trace_set(args)
        with naming_flags(args):
            selected = select(trace_set, read_config(args))
        return [Item(solution, found.definition) for found in selected for solution in found.solutions]
    given = [f"--{name.replace('_', '-')}" for name in FILTERS if hasattr(args, name)]
    if given:
        raise Misuse(f"{', '.join(given)}: the files are named already; leave out one or the other")
    solutions: list[Solution] = []
    problems: list[str] = []
    for file in args.files:
        try:
            solutions.append(load_json_file(Solution, Path(file)))
        except DataSetError as error:
            problems.append(str(error))
    is_named = is_set_named(args) and not problems
    definitions = open_trace_set(args).definitions if is_named else {}
    for one in solutions if is_named else ():
        if one.definition not in definitions:
            hint = did_you_mean(one.definition, definitions)
            problems.append(f"{one.name}: the trace set has no definition {one.definition!r}{hint}")
    if problems:
        raise DataSetError("\n".join(problems))
    return [Item(one, definitions.get(one.definition)) for one in solutions]


def choose_target(names: Sequence[str] | None) -> BuildTarget:
    """Return what to build for: the named architectures, else those of the GPUs here, else the usual one.

    Raises:
        Misuse: a name is no architecture.
    """
    if names is None:
        capabilities = {device.capability for device in discover_devices(None) if device.capability is not None}
        return BuildTarget.of(sorted(capabilities))
    found = {name: NAMED.fullmatch(name if name.startswith("sm_") else f"sm_{name}") for name in names}
    wrong = [name for name, match in found.items() if match is None]
    if wrong:
        known = [f"sm_{name}" for name in ("80", "86", "87", "89", "90", "90a", "100a", "103a", "120a", "121a")]
        hint = did_you_mean(wrong[0], known) or f"; for example {', '.join(known)}"
        raise Misuse(f"--arch: {', '.join(wrong)} is no GPU architecture{hint}")
    return BuildTarget(tuple(dict.fromkeys(f"{match[2]}{match[3]}" for match in found.values() if match is not None)))


def build(items: Sequence[Item], root: Path, target: BuildTarget, *, jobs: int | None) -> Iterator[BuildRow]:
    """Yield the result of each solution: first those that cannot be built, then the builds as they end.

    Raises:
        ConfigError: the cache cannot be written.
    """
    toolchain = find_toolchain()
    rest: list[Solution] = []
    for solution, definition in items:
        reason = why_not_buildable(solution, toolchain)
        # A wrong entry point shows in a library when it is built, but in Python only at the first call: check it here.
        problems = [] if solution.spec.language in COMPILED else check_entry(solution, definition)
        if reason is not None:
            yield BuildRow(solution, "skipped", message=reason)
        elif problems:
            yield BuildRow(solution, "failed", message="\n".join(problems))
        else:
            rest.append(solution)
    at_once = jobs or usable_cores()  # nothing is measured meanwhile, so every core may compile
    with BuildFarm(root, jobs=at_once, target=target, toolchain=toolchain) as farm:
        yield from map(_row, farm.build_all(rest))


def _row(built: Built) -> BuildRow:
    if built.artifact is not None:
        result: Result = "cached" if built.was_cached else "built"
        return BuildRow(built.solution, result, built.seconds, artifact=built.artifact.directory)
    result = "failed" if isinstance(built.error, BuildFailure) else "fault"
    return BuildRow(built.solution, result, built.seconds, message=str(built.error))


def describe_row(row: BuildRow) -> str:
    """Return a line of progress."""
    first = to_printable(row.message.partition("\n")[0])
    note = find_binding(row.solution).note
    tail = f": {first}" if first else f" in {row.seconds:.1f} s" if row.result == "built" and row.seconds else ""
    return f"{row.solution.name}: {WORDS[row.result]}{tail}" + (f"\n  {to_printable(note)}" if note else "")


def render_rows(rows: Sequence[BuildRow], target: BuildTarget, seconds: float, width: int) -> str:
    """Lay out the table, the reasons of failures, the reasons of skips, and the totals."""
    parts = [render_table(COLUMNS, [_cells(row) for row in rows], width)] if rows else []
    skipped: dict[str, list[str]] = {}
    for row in rows:
        if row.result == "skipped":
            skipped.setdefault(row.message, []).append(row.solution.name)
        elif row.message:
            lines = [to_printable(line.rstrip()) for line in row.message.splitlines() if line.strip()]
            if len(lines) > MESSAGE_LINES:
                lines[MESSAGE_LINES:] = [f"… {len(lines) - MESSAGE_LINES} more lines; --format json has them"]
            title = f"{row.solution.name}: {WORDS[row.result]}"
            parts.append("\n".join([title, *(wrap_line(line, width, 2) for line in lines), ""]))
    if skipped:
        skips = [wrap_line(f"skipped {some(names)}: {reason}", width) for reason, names in skipped.items()]
        parts.append("\n".join([*skips, ""]))
    counts = Counter(row.result for row in rows)
    told = ", ".join(f"{counts[result]} {word}" for result, word in WORDS.items() if counts[result])
    architectures = ", ".join(f"sm_{name}" for name in target.architectures)
    uses_gpu = any(row.solution.spec.language is SupportedLanguages.CUDA for row in rows)
    code = f", CUDA code for {architectures}" if uses_gpu else ""
    total = f"{count(len(rows), 'solution')} in {format_duration(seconds)}{code}: {told or 'nothing to do'}"
    return "\n".join([*parts, wrap_line(total, width) + "\n"])


def _cells(row: BuildRow) -> list[str]:
    seconds = f"{row.seconds:.1f} s" if row.seconds else ""
    return [row.solution.name, row.solution.spec.language.value, row.binding or "", WORDS[row.result], seconds]


def _document(row: BuildRow) -> dict[str, Any]:
    return {
        "name": row.solution.name,
        "definition": row.solution.definition,
        "author": row.solution.author,
        "language": row.solution.spec.language.value,
        "binding": row.binding,
        "note": find_binding(row.solution).note,
        "result": row.result,
        "seconds": round(row.seconds, 3),
        "message": row.message or None,
        "artifact": str(row.artifact) if row.artifact is not None else None,
    }
