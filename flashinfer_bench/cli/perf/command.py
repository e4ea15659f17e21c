"""`perf`: times FlashInfer's routines with the engine of `run`.

A case becomes a definition, a workload and one solution per backend. The help imports nothing of the engine.
"""

from __future__ import annotations

import argparse

from flashinfer_bench.cli.perf.flags import PROGRAM, USAGE, declare_perf, print_help
from flashinfer_bench.errors import Misuse

__all__ = ["declare_perf", "execute"]


def execute(args: argparse.Namespace) -> int:
    """Print the help, or run the session. The exit code is 0 if all cases ran and were written.

    Raises:
        Misuse: no arguments are given, or they cannot be used. Nothing was run.
    """
    words: list[str] = args.argv[1:]
    if not words:
        usage = USAGE % {"prog": PROGRAM}
        raise Misuse(f"perf needs a routine or a testlist: {usage}; see {PROGRAM} --help")
    if {"-h", "--help"} & set(words):
        print_help(words)
        return 0
    from flashinfer_bench.cli.perf.session import run_session  # the engine, which the help does not need

    return run_session(words)
