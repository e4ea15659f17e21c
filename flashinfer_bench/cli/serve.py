"""`serve`: an engine behind HTTP, which judges solutions that clients submit, until a signal ends it."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import replace
from importlib.util import find_spec
from typing import Final

from flashinfer_bench.base.install import install_hint
from flashinfer_bench.cli.args import open_trace_set
from flashinfer_bench.cli.output import write_err
from flashinfer_bench.cli.parser import Parser, add_flags, add_local, add_names, number, whole_number
from flashinfer_bench.cli.settings import add_settings, describe_tolerances, naming_flags, read_config
from flashinfer_bench.env import cache_root
from flashinfer_bench.errors import UsageError
from flashinfer_bench.serve.limits import ServeLimits

NEEDED: Final = ("fastapi", "uvicorn")
MOST_JOBS: Final = 1_000_000
"""Maximum number of open jobs of the engine. The server reaches its own limits of tasks first."""
LIMITS: Final = {
    "open_tasks": ("--max-tasks", "most open tasks"),
    "open_tasks_each": ("--max-tasks-each", "most open tasks of one submitter"),
    "body_bytes": ("--max-body-mb", "most megabytes of a request"),
    "sources": ("--max-sources", "most source files of a solution"),
    "polls": ("--max-polls", "most requests that wait at the same time"),
    "drain_s": ("--drain", "seconds for running jobs to end after SIGTERM"),
    "keep_days": ("--keep-tasks", "days that a finished task is stored"),
}
"""Field of the limits → flag and help."""


def declare_serve(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Judge what clients submit over HTTP, and record each verdict; accepted tasks outlive the server.",
        usage="%(prog)s --local PATH [flags]",
        example="serve --local flashinfer-trace --port 8000",
        execute=execute,
    )
    add_local(parser)
    add_names(parser, "--devices")
    flags = {
        "--host HOST": "address to listen on (default: %(default)s)",
        "--port N": "0: any (default: %(default)s)",
        "--token-file FILE": "file with the token of clients; required if other machines can reach the address",
    }
    group = parser.add_argument_group("access")
    add_flags(group, flags, host="127.0.0.1", port=8000)
    allowed = "further host name that clients use; addresses and this machine's name always work"
    group.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=allowed)
    group = parser.add_argument_group("limits")
    for field, (flag, text) in LIMITS.items():
        usual = getattr(ServeLimits(), field)
        usual = usual >> 20 if field == "body_bytes" else usual
        kind = number if isinstance(usual, float) else whole_number
        group.add_argument(flag, dest=field, type=kind, default=usual, metavar="N", help=f"{text} (default: {usual:g})")
    add_settings(parser)


def execute(args: Namespace) -> int:
    """Serve until a signal ends it."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(f"serve needs {' and '.join(missing)}: {install_hint('serve')}")
    from flashinfer_bench import Engine, EngineLimits
    from flashinfer_bench.serve.server import Address, serve
    from flashinfer_bench.serve.token_file import read_token

    limits = read_limits(args)
    token = read_token(args.token_file) if args.token_file is not None else None
    address = Address(args.host, args.port, token, tuple(args.allow_host))
    address.check()
    config = read_config(args)
    trace_set = open_trace_set(args)
    write_err(*describe_tolerances(trace_set))
    engine_limits = EngineLimits(queue=MOST_JOBS, tasks_per_submitter=limits.open_tasks)
    with naming_flags(args):
        engine = Engine(trace_set, config, limits=engine_limits)
    serve(engine, trace_set, address, limits, cache=cache_root(os.environ), announce=write_err)
    return 0


def read_limits(args: Namespace) -> ServeLimits:
    """Return the limits of the flags.

    Raises:
        UsageError: a limit is not above zero, or the seconds of the drain are negative.
    """
    given = {field: getattr(args, field) for field in LIMITS}
    for field, value in given.items():
        if value < 0 or (value == 0 and field != "drain_s"):
            raise UsageError(f"{LIMITS[field][0]}: a number above 0 is expected")
    return replace(ServeLimits(), **{**given, "body_bytes": given["body_bytes"] << 20})
