"""`run`: the flags of the command. `judge.py` runs it; the help waits for the configuration, and not for the engine."""

from __future__ import annotations

from flashinfer_bench.cli.parser import PROGRAM, Parser, add_format, add_local, whole_number
from flashinfer_bench.cli.settings import add_selection, add_settings


def declare_run(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Judge and time the chosen solutions on every workload of their definitions; record each verdict.",
        usage="%(prog)s SET [--solution FILE] [flags]",
        example=f"{PROGRAM} run --local flashinfer-trace --definitions gemm_n128_k4096 --iterations 20",
        execute="judge:execute",
    )
    add_local(parser)
    add_selection(parser)
    drafts = parser.add_argument_group(
        "a solution that you edit", "--solution FILE.py, FILE.cu, FILE.cpp, FOLDER or PACKED.json judges what is in it"
    )
    drafts.add_argument("--entry", metavar="NAME", help="its entry function, or FILE::FUNCTION (default: run)")
    drafts.add_argument("--language", metavar="L", help="its language (default: told by its ending and imports)")
    drafts.add_argument("--watch", action="store_true", help="judge again each time it is saved; Ctrl-C ends")
    add_settings(parser)
    results = parser.add_argument_group("results")
    results.add_argument("--resume", action="store_true", help="skip what is recorded and unchanged")
    results.add_argument("--retry-timeouts", action="store_true", help="with --resume: run recorded TIMEOUTs again")
    saving = results.add_mutually_exclusive_group()
    saving.add_argument("--save-results", action="store_true", help="append each trace to the set: done anyway")
    saving.add_argument("--no-save-results", action="store_true", help="write no traces")
    repeat = "time each solution in N workers on each workload, in turn with the others (default: 1)"
    results.add_argument("--repeat", type=whole_number, default=1, metavar="N", help=repeat)
    results.add_argument("--replay", metavar="TRACE", help="judge again what FILE.jsonl[:LINE] records, on its inputs")
    results.add_argument("--dry-run", action="store_true", help="print the plan and run nothing")
    results.add_argument("--require-passed", action="store_true", help="exit with 1 unless every job passed")
    broken = results.add_mutually_exclusive_group()
    broken.add_argument("--strict", action="store_true", help="run nothing if a part of what was asked for is broken")
    broken.add_argument("--allow-broken", action="store_true", help="report broken entries but exit with 0")
    add_format(results)
    results.add_argument("--quiet", action="store_true", help="no progress; only errors and the result")
