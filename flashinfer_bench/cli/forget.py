"""`forget`: removes a solution, such as a draft, and its traces from the files of a trace set."""

from __future__ import annotations

from argparse import Namespace

from flashinfer_bench.cli.args import load_trace_set
from flashinfer_bench.cli.parser import Parser, add_format, add_local, complete_with
from flashinfer_bench.cli.tables import count, write_result
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.sets.removal import remove_solution, remove_traces
from flashinfer_bench.errors import DataSetError


def declare_forget(parser: Parser) -> None:
    """Add the help and the arguments of the command."""
    parser.describe(
        "Remove a solution, such as a draft, and all its traces from a trace set. It asks nothing.\n"
        "Exit codes: 0 removed, 1 a file cannot be changed, 2 usage error, such as an unknown name.",
        usage="%(prog)s NAME [SET] [flags]",
        example="forget my_rmsnorm_h4096 --local flashinfer-trace",
        execute=execute,
    )
    complete_with("solutions", parser.add_argument("name", metavar="NAME", help="the solution"))
    add_local(parser)
    add_format(parser)


def execute(args: Namespace) -> int:
    """Remove the solution and its traces, and print what was removed.

    Raises:
        DataSetError: the set has neither a solution nor a trace of this name.
    """
    trace_set, name = load_trace_set(args), args.name
    known = {*trace_set.solution_files, *(trace.solution or "" for trace in trace_set.all_traces())}
    if name not in known:
        hint = did_you_mean(name, known) or "; `flashinfer-bench list --solutions` shows the names"
        raise DataSetError(f"the trace set has no solution {name!r}{hint}")
    file = remove_solution(trace_set, name)
    traces = {str(path): number for path, number in remove_traces(trace_set, lambda one: one.solution == name).items()}
    lines = [f"removed {file}"] if file is not None else []
    lines += [f"removed {count(number, 'trace')} of {path}" for path, number in traces.items()]
    write_result(args, {"version": 1, "solution": name, "file": file and str(file), "traces": traces}, lines)
    return 0
