"""The flags and the help of the commands about a server."""

from __future__ import annotations

from flashinfer_bench.cli.flags.engine_words import DEFAULT_URL
from flashinfer_bench.cli.parser import PROGRAM, Parser, add_local, add_names, number, whole_number
from flashinfer_bench.cli.settings import add_settings
from flashinfer_bench.serve.limits import ServeLimits


def declare_serve(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Judge what clients submit over HTTP, and record each verdict; accepted tasks outlive the server.",
        usage="%(prog)s --local PATH [flags]",
        example=f"{PROGRAM} serve --local flashinfer-trace --port 8000",
        execute="resident.serve:execute",
    )
    add_local(parser)
    add_names(parser, "--devices", "only these devices: 0, cuda:1, a GPU's uuid, or cpu")
    _add_address(parser)
    _add_limits(parser)
    add_settings(parser)


def _add_address(parser: Parser) -> None:
    group = parser.add_argument_group("who may ask")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    group.add_argument("--port", type=whole_number, default=8000, metavar="N", help="0: any (default: %(default)s)")
    token = "a file with the token that clients need; needed where others can reach the address"
    group.add_argument("--token-file", metavar="FILE", help=token)
    allowed = "a name by which clients reach this server; addresses and this machine's name are known"
    group.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=allowed)


def _add_limits(parser: Parser) -> None:
    group = parser.add_argument_group("limits")
    usual = ServeLimits()
    for flag, field, text in (
        ("--max-tasks", "open_tasks", "tasks that are not over"),
        ("--max-tasks-each", "open_tasks_each", "the same of one submitter"),
        ("--max-body-mb", "body_mb", "megabytes of a request"),
        ("--max-sources", "sources", "source files of a solution"),
        ("--max-polls", "polls", "requests that wait at once"),
    ):
        default = usual.body_bytes >> 20 if field == "body_mb" else getattr(usual, field)
        group.add_argument(
            flag, dest=field, type=whole_number, default=default, metavar="N", help=f"{text} (default: %(default)s)"
        )
    for flag, field, text in (
        ("--drain", "drain_s", "seconds that running jobs have to end after SIGTERM"),
        ("--keep-tasks", "keep_days", "days for which a task that is over is remembered"),
    ):
        default = getattr(usual, field)
        group.add_argument(
            flag, dest=field, type=number, default=default, metavar="F", help=f"{text} (default: %(default)g)"
        )


def declare_submit(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Submit a solution to a server, wait for its verdicts, and print them as `run` does.",
        usage="%(prog)s SOLUTION.json --server URL [flags]",
        example=f"{PROGRAM} submit my_rmsnorm.json --server {DEFAULT_URL}",
        execute="resident.submit:execute",
    )
    parser.add_argument("solution", metavar="SOLUTION.json", help="the solution's file")
    add_server(parser)
    add_names(parser, "--workloads", "only these workloads, by their uuids")
    parser.add_argument("--priority", type=whole_number, default=0, metavar="N", help="higher ones are judged earlier")
    parser.add_argument("--submitter", metavar="NAME", help="who asks; submitters get equal shares of the server")
    words = "judge it at full assurance on a GPU: where it would be the best known, at once, or never"
    parser.add_argument(
        "--confirm", choices=("if_best", "always", "never"), default="if_best", help=f"{words} (default: %(default)s)"
    )
    parser.add_argument("--no-wait", action="store_true", help="print the id of the task, and do not wait")
    parser.add_argument("--require-passed", action="store_true", help="exit with 1 unless every job passed")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    parser.add_argument("--quiet", action="store_true", help="no progress; only errors and the result")


def declare_top(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Show what a server is doing: devices, current jobs, queue, rate. Ctrl-C ends it.",
        usage="%(prog)s --server URL [flags]",
        example=f"{PROGRAM} top --server {DEFAULT_URL} --once",
        execute="resident.top:execute",
    )
    add_server(parser)
    parser.add_argument("--once", action="store_true", help="show it once, and end")
    parser.add_argument("--every", type=number, default=1.0, metavar="F", help="seconds between looks (default: 1)")
    parser.add_argument("--json", action="store_true", help="print JSON, one line for each look")


def add_server(parser: Parser) -> None:
    """Add the flags."""
    parser.add_argument("--server", default=DEFAULT_URL, metavar="URL", help="(default: %(default)s)")
    parser.add_argument("--token-file", metavar="FILE", help="a file with the server's token")
