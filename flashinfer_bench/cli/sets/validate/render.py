"""`validate-render`: shows a report that `validate` wrote."""

from __future__ import annotations

import argparse
from pathlib import Path

from flashinfer_bench.cli.exit_codes import FAILED, RAN
from flashinfer_bench.cli.parser import Parser
from flashinfer_bench.cli.screen.output import write_out
from flashinfer_bench.cli.sets.validate.text import render_validation
from flashinfer_bench.cli.sets.validate.validation import read_validation
from flashinfer_bench.cli.shared_flags import PROGRAM


def declare_validate_render(parser: Parser) -> None:
    """Add the help and the arguments of the command."""
    parser.describe(
        "Show a report that `validate --outputs json` wrote, as the text that it would print.\n"
        "Exit codes are those of validate: 1 where the report has errors.",
        example=f"{PROGRAM} validate-render report.json",
        execute=execute,
    )
    parser.add_argument("report", metavar="REPORT", help="the report.json")


def execute(args: argparse.Namespace) -> int:
    """Print the report; return 1 if it has errors."""
    validation = read_validation(Path(args.report))
    write_out(render_validation(validation))
    return FAILED if validation.errors else RAN
