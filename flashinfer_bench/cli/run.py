"""`run`: the flags of the command. `run_jobs.py` runs it. The help imports the configuration, but not the engine."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from flashinfer_bench.cli.axes import AXIS_HELP
from flashinfer_bench.cli.parser import GITHUB_FLAG, QUIET_FLAG, SOURCE_FLAGS, Parser, add_flags, add_format, add_local
from flashinfer_bench.cli.settings import add_selection, add_settings

SOURCES: Final = "--solution FILE.py, FILE.cu, FILE.cpp, FOLDER or PACKED.json judges that source"


def declare_run(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Judge and time the chosen solutions on every workload of their definitions; record each verdict.",
        usage="%(prog)s SET [--solution FILE] [flags]",
        example="run --local flashinfer-trace --definitions gemm_n128_k4096 --iterations 20",
        execute=execute,
    )
    add_local(parser)
    add_selection(parser)
    parser.add_argument("--axis", action="append", default=[], metavar="NAME=SIZES", help=AXIS_HELP)
    drafts = parser.add_argument_group("a solution that you edit", SOURCES)
    add_flags(drafts, SOURCE_FLAGS | {"--watch": "judge again after each save, until Ctrl-C"})
    add_flags(drafts, {"--drafts": "judge the drafts of earlier runs, too"})
    add_settings(parser)
    results = parser.add_argument_group("results")
    resume = {
        "--resume": "skip jobs that are recorded and unchanged",
        "--retry-timeouts": "with --resume: run recorded TIMEOUTs again",
        "--last-failed": "judge only solutions on the workloads on which they did not pass last",
        "-x --fail-fast": "stop after the first job that does not pass",
    }
    add_flags(results, resume)
    saving = {"--save-results": "append each trace to the set (the default)", "--no-save-results": "write no traces"}
    add_flags(results.add_mutually_exclusive_group(), saving)
    more = {
        "--repeat N": "time each solution in N workers on each workload, interleaved with the others (default: 1)",
        "--replay TRACE": "judge the jobs that FILE.jsonl[:LINE] records again, on the same inputs",
        "--dry-run": "print the plan, without running it",
        "--require-passed": "exit with 1 unless every job passed",
    }
    add_flags(results, more, repeat=1)
    broken = {
        "--strict": "do not run if a requested part of the set is broken",
        "--allow-broken": "report broken entries but exit with 0",
    }
    add_flags(results.add_mutually_exclusive_group(), broken)
    add_format(results)
    add_flags(results, QUIET_FLAG | GITHUB_FLAG)


def execute(args: Namespace) -> int:
    """Run the jobs that the flags ask for."""
    from flashinfer_bench.cli.run_jobs import run_jobs  # the engine

    return run_jobs(args)
