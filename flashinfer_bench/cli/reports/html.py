"""`report html`: the verdicts of a set as a folder of pages that works from disk."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from flashinfer_bench.cli.args import choose_traces, find_output, open_trace_set
from flashinfer_bench.cli.exit_codes import FAILED, RAN
from flashinfer_bench.cli.output import write_err, write_out
from flashinfer_bench.cli.render import count
from flashinfer_bench.errors import ConfigError, Misuse

NEEDED: Final = ("jinja2", "pygments")
"""Modules of the extra `html`."""


def execute_html(args: argparse.Namespace) -> int:
    """Write the pages."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"this needs {' and '.join(missing)}: pip install 'flashinfer-bench[html]'")
    from flashinfer_bench.report.pages.site import write_site  # its libraries are optional

    trace_set = open_trace_set(args)
    traces = choose_traces(trace_set, args)
    title = args.title or f"Kernels of {trace_set.root.resolve().name if trace_set.root else 'a set'}"
    find_output(args.folder, args)  # refuses links in a set
    try:
        site = write_site(Path(args.folder), trace_set, traces, title=title, baseline_author=args.baseline_author)
    except ValueError as error:
        raise Misuse(f"--baseline-author: {error}") from None
    except OSError as error:
        write_err(f"error: {args.folder}: cannot be written: {error}")
        return FAILED
    counts = (count(site.definitions, "definition"), count(site.solutions, "solution"), count(site.traces, "verdict"))
    write_out(f"{site.folder / 'index.html'}: {', '.join(counts)}\n")
    return RAN
