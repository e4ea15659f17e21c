"""`export apply`: writes the confirmed solutions of a set to the folder that FlashInfer's Trace Apply reads."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.cli.args import choose_definitions, find_output, open_trace_set
from flashinfer_bench.cli.output import FAILED, RAN
from flashinfer_bench.cli.parser import Parser, add_flags, add_format, add_local, add_names
from flashinfer_bench.cli.tables import count, format_speedup, write_result
from flashinfer_bench.data.trace_apply.check import FOLDER, SWITCH, check_folder, find_reader
from flashinfer_bench.data.trace_apply.export import ExportedFolder


def declare_export(parser: Parser) -> None:
    """Add the help and the sub-command."""
    parser.describe("Write solutions for other programs.", example="export apply applied --local flashinfer-trace")
    apply = parser.add_command(
        "apply",
        "the folder that FlashInfer's Trace Apply reads",
        description="Write the best confirmed solution of each definition to the folder that FlashInfer's Trace Apply\n"
        "reads, so that a served model calls it (docs/apply.md). Solutions that FlashInfer cannot load or\n"
        "call rightly are skipped, with the reason.\n"
        "Exit codes: 0 written, 1 nothing written or --check found a problem, 2 usage error.",
        usage="%(prog)s DIR [SET] [flags]",
        example="export apply applied --local flashinfer-trace --hardware H200 --check",
        execute=execute_apply,
    )
    flags = {
        "DIR": "the folder to write: new or empty",
        "--hardware NAME": "the device of the verdicts, or a part of its name (needed if there are several)",
        "--unconfirmed": "also take times that are not confirmed, such as quick looks and CPU times",
        "--check": "load each written file by FlashInfer's own reader, in a process of its own",
    }
    add_flags(apply, flags, hardware="")
    add_local(apply)
    for kind in ("--definitions", "--op-types", "--solutions"):
        add_names(apply, kind)
    add_format(apply)


def execute_apply(args: Namespace) -> int:
    """Write the folder, and check it with --check. Print the written and the skipped solutions, and the reasons."""
    if args.check:
        find_reader()
    trace_set = open_trace_set(args)
    find_output(args.dir, args)  # refuses links in a set
    done = trace_set.export_apply(
        args.dir,
        definitions=[one.name for one in choose_definitions(trace_set, args)],
        solutions=args.solutions or None,
        hardware=args.hardware,
        unconfirmed=args.unconfirmed,
    )
    checked = check_folder(Path(done.directory)) if args.check and done.written else None
    write_result(args, {**asdict(done), "check": checked}, *_describe(done, checked))
    return RAN if done.written and not (checked and checked["problems"]) else FAILED


def _describe(done: ExportedFolder, checked: Mapping[str, Any] | None) -> Iterator[list[str]]:
    """Yield the sections of the text."""
    for one in done.written:
        standing = "confirmed" if one.confirmed else "not confirmed"
        head = f"{one.name}: {to_printable(one.solution)}, {one.form}, {format_speedup(one.speedup)}, {standing}"
        yield [head, *(f"  limit: {limit}" for limit in one.limits)]
    yield [to_printable(f"skipped {one.solution or one.definition}: {one.reason}") for one in done.skipped]
    if checked is not None:
        read = f"FlashInfer {checked['flashinfer']} reads {count(checked['files'], 'file')}"
        yield [f"check: {to_printable(line)}" for line in [read, *checked["problems"]]]
    if done.written:
        yield [to_printable(f"use: {SWITCH}=1 {FOLDER}={shlex.quote(str(Path(done.directory).absolute()))}")]
