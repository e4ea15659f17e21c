"""`serve`: an engine behind HTTP, which judges what clients submit until it is told to end."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from importlib.util import find_spec
from typing import Final

from flashinfer_bench.cli.args import open_trace_set
from flashinfer_bench.cli.output import write_err
from flashinfer_bench.cli.settings import describe_tolerances, naming_flags, read_config
from flashinfer_bench.env import cache_root
from flashinfer_bench.errors import Misuse
from flashinfer_bench.serve.limits import ServeLimits

NEEDED: Final = ("fastapi", "uvicorn")
MOST_JOBS: Final = 1_000_000
"""The engine may hold so many open jobs; the server's own limits, which count tasks, are reached first."""


def execute(args: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise Misuse(f"serve needs {' and '.join(missing)}: pip install 'flashinfer-bench[serve]'")
    from flashinfer_bench import Engine, EngineLimits
    from flashinfer_bench.serve.server import Address, ServerSettings, choose_home, serve
    from flashinfer_bench.serve.token_file import read_token

    limits = read_limits(args)
    token = read_token(args.token_file) if args.token_file is not None else None
    address = Address(args.host, args.port, token, tuple(args.allow_host))
    address.check()
    config = read_config(args)
    trace_set = open_trace_set(args)
    home = choose_home(trace_set, cache_root(os.environ))
    for line in (*describe_tolerances(trace_set), *home.notes):
        write_err(line)
    room = EngineLimits(queue=MOST_JOBS, tasks_per_submitter=limits.open_tasks)
    with naming_flags(args):
        engine = Engine(trace_set, config, limits=room)
    serve(engine, trace_set, ServerSettings(home, address, limits), write_err)
    return 0


def read_limits(args: argparse.Namespace) -> ServeLimits:
    """Return the limits that the flags say.

    Raises:
        Misuse: one is not above zero, or the seconds of the drain are below it.
    """
    flags = {
        "open_tasks": "--max-tasks",
        "open_tasks_each": "--max-tasks-each",
        "body_mb": "--max-body-mb",
        "sources": "--max-sources",
        "polls": "--max-polls",
        "drain_s": "--drain",
        "keep_days": "--keep-tasks",
    }
    given = {name: getattr(args, name) for name in flags}
    for name, value in given.items():
        if value < 0 or (value == 0 and name != "drain_s"):
            raise Misuse(f"{flags[name]}: a number above 0 is expected")
    return replace(ServeLimits(), body_bytes=given.pop("body_mb") << 20, **given)
