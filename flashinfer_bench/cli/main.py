"""The entry point of the command line: `cli()`, which scripts and the installed command call.

This module imports no other module at import time, so that `--help` is fast.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def cli(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 ran, 1 failed, 2 usage error, 130 interrupted."""
    try:
        from flashinfer_bench.cli.entry import run_command_line
    except KeyboardInterrupt:  # the command line was not loaded yet
        os.write(2, b"interrupted\n")
        return 130

    return run_command_line(argv)
