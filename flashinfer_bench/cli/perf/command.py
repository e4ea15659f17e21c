"""`perf`: time FlashInfer's routines. A front door to the same engine as `run`: a case becomes a definition, a workload
and one solution per backend. Asking for help imports nothing of the engine."""

from __future__ import annotations

import argparse

from flashinfer_bench.cli.perf.flags import PROGRAM, USAGE, print_help
from flashinfer_bench.errors import Misuse


def execute(args: argparse.Namespace) -> int:
    """Print the help that is asked for, or run the session; the exit code says whether all cases ran and were written.

    Raises:
        Misuse: nothing is asked for, or what is cannot be used; nothing was run.
    """
    words: list[str] = args.argv[1:]
    if not words:
        usage = USAGE % {"prog": PROGRAM}
        raise Misuse(f"perf needs a routine or a testlist: {usage}; see {PROGRAM} --help")
    if {"-h", "--help"} & set(words):
        print_help(words)
        return 0
    from flashinfer_bench.cli.perf.session import run_session  # the engine: help has no use for it

    return run_session(words)
