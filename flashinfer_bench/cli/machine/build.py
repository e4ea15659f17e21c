"""`build`: compiles the solutions of a set, or single files, without running them, and tells the result of each.

The build farm that `run` uses compiles them, into the same cache.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from flashinfer_bench.base.host import usable_cores
from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.bench.planning.selection import select
from flashinfer_bench.cli.args import is_set_named, open_trace_set
from flashinfer_bench.cli.machine.build_outcome import (
    BuildOutcome,
    BuildRow,
    Result,
    describe_row,
    outcome_document,
    render_outcome,
)
from flashinfer_bench.cli.output import one_interrupt, write_err, write_out
from flashinfer_bench.cli.render import available_width
from flashinfer_bench.cli.settings import naming_flags, read_config
from flashinfer_bench.compile import BuildFailure, BuildFarm, BuildTarget, Built, find_toolchain, why_not_buildable
from flashinfer_bench.compile.requirements import NAMED
from flashinfer_bench.data import Definition, Solution, load_json_file
from flashinfer_bench.data.entry import COMPILED, check_entry
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.env import cache_root
from flashinfer_bench.errors import DataSetError, Misuse

FILTERS: Final = ("definitions", "op_types", "solutions", "authors")


class Item(NamedTuple):
    """A solution to build."""

    solution: Solution
    definition: Definition | None
    """None where no set was named. The arguments of the entry function are not counted then."""


def execute(args: argparse.Namespace) -> int:
    """Build the solutions. Show each result when it is there, and all results at the end."""
    items = choose_solutions(args)
    outcome = BuildOutcome(cache_root(os.environ).resolve(), choose_target(getattr(args, "arch", None)))
    started = time.monotonic()
    with one_interrupt():
        for row in build(items, outcome, jobs=read_config(args).build_jobs):
            outcome.rows.append(row)
            if not args.quiet:
                write_err(f"[{len(outcome.rows):>{len(str(len(items)))}}/{len(items)}] {describe_row(row)}")
    outcome.seconds = time.monotonic() - started
    if args.format == "json":
        write_out(json.dumps(outcome_document(outcome), indent=2) + "\n")
    else:
        write_out(render_outcome(outcome, available_width(sys.stdout)))
    return outcome.exit_code(require_built=args.require_built)


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
    solutions = _load_files(args.files)
    if not is_set_named(args):
        return [Item(solution, None) for solution in solutions]
    definitions = open_trace_set(args).definitions
    problems = [_no_definition(item, definitions) for item in solutions if item.definition not in definitions]
    if problems:
        raise DataSetError("\n".join(problems))
    return [Item(solution, definitions[solution.definition]) for solution in solutions]


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


def build(items: Sequence[Item], outcome: BuildOutcome, *, jobs: int | None) -> Iterator[BuildRow]:
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
    with BuildFarm(outcome.root, jobs=at_once, target=outcome.target, toolchain=toolchain) as farm:
        yield from map(_row, farm.build_all(rest))


def _row(built: Built) -> BuildRow:
    result: Result
    if built.artifact is not None:
        result = "cached" if built.was_cached else "built"
        return BuildRow(built.solution, result, built.seconds, artifact=built.artifact.directory)
    result = "failed" if isinstance(built.error, BuildFailure) else "fault"
    return BuildRow(built.solution, result, built.seconds, message=str(built.error))


def _load_files(files: Sequence[str]) -> list[Solution]:
    solutions: list[Solution] = []
    problems: list[str] = []
    for file in files:
        try:
            solutions.append(load_json_file(Solution, Path(file)))
        except DataSetError as error:
            problems.append(str(error))
    if problems:
        raise DataSetError("\n".join(problems))
    return solutions


def _no_definition(solution: Solution, definitions: Mapping[str, Definition]) -> str:
    hint = did_you_mean(solution.definition, definitions)
    return f"{solution.name}: the trace set has no definition {solution.definition!r}{hint}"
