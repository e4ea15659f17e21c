"""`mcp`: tools for a model that writes kernels, by the Model Context Protocol over stdin and stdout."""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from importlib.util import find_spec

from flashinfer_bench.base.install import install_hint
from flashinfer_bench.cli.args import open_trace_set
from flashinfer_bench.cli.parser import Parser, add_flags, add_local
from flashinfer_bench.env import DATASET_VARIABLE
from flashinfer_bench.errors import UsageError


def declare_mcp(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Serve tools to a model, by the Model Context Protocol over stdin and stdout: list, show and validate a set,\n"
        "run a solution, explain its failure, compare two solutions, inspect a kernel. A program that hosts models\n"
        "starts it (claude mcp add NAME -- COMMAND).",
        example="mcp --local flashinfer-trace",
        execute=execute,
    )
    add_local(parser)
    add_flags(parser, {"--time-limit F": "seconds that a call may take (default: %(default)s)"}, time_limit=600.0)


def execute(args: Namespace) -> int:
    """Serve until stdin ends."""
    if find_spec("mcp") is None:
        raise UsageError(f"mcp needs the package mcp: {install_hint('mcp')}")
    from flashinfer_bench.agents.mcp_server import serve_mcp

    roots = [str(root.resolve()) for root in open_trace_set(args).roots]
    if len(roots) > 1:
        raise UsageError(f"mcp serves one trace set, not {len(roots)}: {', '.join(roots)}")
    os.environ[DATASET_VARIABLE] = roots[0]  # the tools read this variable
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without this, Ctrl-C takes effect only after a line on stdin
    serve_mcp(args.time_limit)
    return 0
