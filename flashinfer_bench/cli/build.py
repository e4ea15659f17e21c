"""`build`: compiles solutions of a set or of single files, without running them, and reports each result. The command
uses the build pool and the cache of `run`.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.host import usable_cores
from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.bench.planning.selection import select
from flashinfer_bench.cli.args import is_set_named, open_trace_set
from flashinfer_bench.cli.drafts import take_drafts
from flashinfer_bench.cli.output import one_interrupt, write_err
from flashinfer_bench.cli.parser import (
    EXIT_CODES,
    QUIET_FLAG,
    SET_HELP,
    SOURCE_FLAGS,
    Parser,
    add_filters,
    add_flags,
    add_format,
    add_local,
    add_names,
)
from flashinfer_bench.cli.settings import add_setting, naming_flags, read_config
from flashinfer_bench.cli.tables import count, format_duration, indent_text, lay_out, list_counts, some, write_result
from flashinfer_bench.compile import BuildFailure, BuildPool, BuildTarget, find_toolchain, why_not_buildable
from flashinfer_bench.compile.requirements import NAMED
from flashinfer_bench.data import Definition, Solution, load_json_file
from flashinfer_bench.data.entry import COMPILED, check_entry, find_binding
from flashinfer_bench.env import cache_root
from flashinfer_bench.errors import UsageError

FORMAT_VERSION: Final = 1
"""Version of the JSON document. 1: the first."""
RESULTS: Final = ("built", "cached", "failed", "fault", "skipped")
"""Results of builds. `failed` is the solution's fault. `fault` is the machine's fault."""
TABLE: Final = {
    "Solution": "{name}",
    "Language": "{language}",
    "Binding": "{binding}",
    "Result": "{result}",
    "#Seconds": "{seconds}",
}
MESSAGE_LINES: Final = 40
Row = dict[str, Any]
"""The result of one solution, as in the JSON document."""


def declare_build(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Compile the solutions of a trace set, or the named files, without running them. A packed solution needs no\n"
        "set. No GPU is needed: CUDA solutions are compiled for the GPUs of this machine, else for sm_90a. `run`\n"
        "uses the builds. A solution whose compiler or package is missing here is skipped, with the reason.\n"
        f"{EXIT_CODES}",
        usage="%(prog)s [FILE ...] [--local PATH] [flags]",
        example="build --local flashinfer-trace --authors cuda --arch sm_80 sm_90a",
        execute=execute,
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="a source, a folder, or a packed solution")
    add_local(parser, SET_HELP)
    add_flags(parser, SOURCE_FLAGS)
    add_filters(parser.add_argument_group("selection", "one or more names each, separated by spaces or commas"))
    group = parser.add_argument_group("how")
    add_names(group, "--arch", "GPU architectures to compile CUDA solutions for, such as sm_90a (default: those here)")
    add_setting(group, "build_jobs", "parallel builds (default: number of cores)")
    add_flags(group, {"--require-built": "exit with 1 also if a solution was skipped"}, config=None)
    add_format(group)
    add_flags(group, QUIET_FLAG)


def execute(args: Namespace) -> int:
    """Build the solutions. Print each result when it is ready, and all results at the end."""
    items = choose_solutions(args)
    target = choose_target(args.arch)
    root = cache_root(os.environ).resolve()
    rows: list[Row] = []
    started = time.monotonic()
    with one_interrupt():
        for row in build(items, root, target, jobs=read_config(args).build_jobs):
            rows.append(row)
            if not args.quiet:
                first = (row["message"] or "").partition("\n")[0]
                end = f": {first}" if first else f" in {row['seconds']:.1f} s" if row["seconds"] else ""
                write_err(f"[{len(rows)}/{len(items)}] {row['name']}: {row['result']}{end}")
    seconds = time.monotonic() - started
    counts = Counter(row["result"] for row in rows)
    document = {
        "version": FORMAT_VERSION,
        "cache": str(root),
        "architectures": [f"sm_{name}" for name in target.architectures],
        "seconds": round(seconds, 3),
        "counts": counts,
        "solutions": rows,
    }
    skipped, reasons = defaultdict(list), []
    for row in rows:
        if row["result"] == "skipped":
            skipped[row["message"]].append(row["name"])
        elif row["message"]:
            reasons.append([f"{row['name']}: {row['result']}", *indent_text(row["message"], 2, MESSAGE_LINES)])
    reasons.append([f"skipped {some(names)}: {reason}" for reason, names in skipped.items()])
    results = list_counts({result: counts[result] for result in RESULTS}) or "nothing to do"
    total = f"{count(len(rows), 'solution')} in {format_duration(seconds)}: {results}"
    write_result(args, document, lay_out(TABLE, rows), *reasons, [total])
    return 1 if counts["failed"] or counts["fault"] or (args.require_built and counts["skipped"]) else 0


def choose_solutions(args: Namespace) -> list[tuple[Solution, Definition | None]]:
    """Return the solutions of the named files, or the selected solutions of the set, with their definitions.

    Packed solutions need no set. Then the arguments of the entry function are not checked.

    Raises:
        UsageError: files or names do not exist, or are wrong.
    """
    are_packed = args.files and all(file.endswith(".json") for file in args.files)
    needs_set = args.definitions or args.op_types or args.solutions or args.authors or args.entry or args.language
    if are_packed and not (needs_set or is_set_named(args)):
        return [(load_json_file(Solution, Path(file)), None) for file in args.files]
    trace_set = open_trace_set(args)
    if args.files:
        args.solutions = [*args.solutions, *args.files]
    take_drafts(args, trace_set)
    with naming_flags(args):
        selected = select(trace_set, read_config(args))
    return [(solution, found.definition) for found in selected for solution in found.solutions]


def choose_target(names: Sequence[str]) -> BuildTarget:
    """Return the build target: the named architectures, else the architectures of this machine's GPUs, else the
    default.

    Raises:
        UsageError: a name is not an architecture.
    """
    if not names:
        return BuildTarget.of(sorted({one.capability for one in discover_devices(None) if one.capability is not None}))
    found = [NAMED.fullmatch(f"sm_{name.removeprefix('sm_')}") for name in names]
    if None in found:
        raise UsageError(f"--arch: {', '.join(names)}: that is no GPU architecture, such as sm_80, sm_90a or sm_120a")
    return BuildTarget(tuple(dict.fromkeys(f"{match[2]}{match[3]}" for match in found if match is not None)))


def build(
    items: Sequence[tuple[Solution, Definition | None]], root: Path, target: BuildTarget, *, jobs: int | None
) -> Iterator[Row]:
    """Yield the result of each solution. Solutions that cannot be built come first. Builds follow as they end.

    Raises:
        ConfigError: the cache cannot be written.
    """
    toolchain = find_toolchain()
    rest: list[Solution] = []
    for solution, definition in items:
        # A build detects a wrong entry point only in a compiled solution. In Python, this check replaces a call.
        problems = [] if solution.spec.language in COMPILED else check_entry(solution, definition)
        if (reason := why_not_buildable(solution, toolchain)) is not None:
            yield _row(solution, "skipped", reason)
        elif problems:
            yield _row(solution, "failed", "\n".join(problems))
        else:
            rest.append(solution)
    jobs = jobs or usable_cores()  # no measurement runs, so every core can compile
    with BuildPool(root, jobs=jobs, target=target, toolchain=toolchain) as build_pool:
        for built in build_pool.build_all(rest):
            if built.artifact is not None:
                result, folder = "cached" if built.was_cached else "built", str(built.artifact.directory)
                yield _row(built.solution, result, seconds=built.seconds, artifact=folder)
            else:
                result = "failed" if isinstance(built.error, BuildFailure) else "fault"
                yield _row(built.solution, result, str(built.error), built.seconds)


def _row(solution: Solution, result: str, message: str = "", seconds: float = 0.0, artifact: str | None = None) -> Row:
    """Return a row. `seconds` is the duration of the build. A cached artifact has the duration of the build that made
    the artifact."""
    found = find_binding(solution)
    return {
        **{name: getattr(solution, name) for name in ("name", "definition", "author")},
        "language": solution.spec.language.value,
        "binding": found.binding.value if solution.spec.language in COMPILED else None,
        "note": found.note,
        "result": result,
        "seconds": round(seconds, 3),
        "message": message or None,
        "artifact": artifact,
    }
