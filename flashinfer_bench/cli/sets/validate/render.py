"""`validate-render`: shows a report that `validate` wrote."""

from __future__ import annotations

import argparse
from pathlib import Path

from flashinfer_bench.cli.exit_codes import FAILED, RAN
from flashinfer_bench.cli.output import write_out
from flashinfer_bench.cli.sets.validate.text import render_validation
from flashinfer_bench.cli.sets.validate.validation import read_validation


def execute(args: argparse.Namespace) -> int:
    """Print the report; return 1 if it has errors."""
    validation = read_validation(Path(args.report))
    write_out(render_validation(validation))
    return FAILED if validation.errors else RAN
