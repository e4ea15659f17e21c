"""Runs one command: parse, import its module, call it, and turn what it raises into lines and an exit code.

A command is a function of its module: `execute(args) -> int`; `args.argv` is what was typed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from flashinfer_bench.cli.exit_codes import INTERRUPTED
from flashinfer_bench.cli.flags import make_parser, parse_command_line
from flashinfer_bench.cli.screen.output import open_closed_streams, tolerate_narrow_encodings, write_err, write_problems
from flashinfer_bench.cli.shared_flags import COMMAND_FLAG
from flashinfer_bench.errors import FlashInferBenchError, Misuse

MODULES: Final[dict[str, tuple[str, str]]] = {
    "run": ("flashinfer_bench.cli.run", "execute"),
    "list": ("flashinfer_bench.cli.list", "execute"),
    "validate": ("flashinfer_bench.cli.validate", "execute"),
    "config_show": ("flashinfer_bench.cli.config_show", "execute"),
    "report_summary": ("flashinfer_bench.cli.report", "execute_summary"),
    "report_best": ("flashinfer_bench.cli.report", "execute_best"),
    "build": ("flashinfer_bench.cli.build", "execute"),
    "pack": ("flashinfer_bench.cli.pack", "execute_pack"),
    "unpack": ("flashinfer_bench.cli.pack", "execute_unpack"),
    "cache_show": ("flashinfer_bench.cli.cache", "execute_show"),
    "cache_clear": ("flashinfer_bench.cli.cache", "execute_clear"),
    "cache_verify": ("flashinfer_bench.cli.cache", "execute_verify"),
    "doctor": ("flashinfer_bench.cli.doctor", "execute"),
    "perf": ("flashinfer_bench.cli.perf.command", "execute"),
}
"""Where each command lives; imported only when it is called."""


def run_command_line(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    open_closed_streams()
    tolerate_narrow_encodings()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        make_parser()[0].print_help(sys.stderr)
        return Misuse.exit_code
    return call(lambda: _import_command(parse_command_line(arguments))())


def call(command: Callable[[], int]) -> int:
    """Call something that may be refused, fail or be interrupted, and return the exit code; no traceback for these."""
    try:
        return command()
    except FlashInferBenchError as error:
        write_problems(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        write_err("interrupted")
        return INTERRUPTED


def _import_command(args: argparse.Namespace) -> Callable[[], int]:
    module, function = MODULES[getattr(args, COMMAND_FLAG)]
    command: Callable[[argparse.Namespace], int] = getattr(importlib.import_module(module), function)
    return partial(command, args)
