"""`convert`: writes a set of another layout or dialect in the standard layout, and reports lost parts."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Final

from flashinfer_bench.cli.args import describe_issues, find_output, has_nothing, open_folder
from flashinfer_bench.cli.output import FAILED, RAN, write_err
from flashinfer_bench.cli.parser import Parser, add_flags, add_format
from flashinfer_bench.cli.tables import count, write_result
from flashinfer_bench.data.adapted import ENGINES
from flashinfer_bench.data.kernelbench.tasks import PRECISIONS
from flashinfer_bench.data.sets.merge import convert_set
from flashinfer_bench.errors import DataSetError

NOUNS: Final = ("definition", "solution", "workload", "trace", "blob")


def declare_convert(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Write a trace set in the standard layout: one saved by another engine, a problem's folder, a folder of\n"
        "problems, or definitions dumped from a library. KernelBench's tasks and GPU MODE's problems run to find\n"
        "shapes (docs/kernelbench.md, docs/gpumode.md). Lost parts are reported; SRC does not change.\n"
        "Exit codes: 0 all parts were written, 1 parts are missing, 2 usage error.",
        usage="%(prog)s SRC --output DIR [flags]",
        example="convert problems/ --output my-set",
        execute=execute,
    )
    flags = {
        "SRC": "the folder to read",
        f"--precision {'|'.join(PRECISIONS)}": "KernelBench's precision: dtype and tolerance (default: %(default)s)",
        "--trust-definitions": "run the code of tasks and problems with all your rights",
    }
    add_flags(parser, flags, precision="fp32")
    layouts = "the layout of SRC (default: found by itself, among the others)"
    parser.add_argument("--from", dest="layout", choices=(*ENGINES,), help=layouts)
    parser.add_argument("--output", metavar="DIR", required=True, help="the folder to write: new or empty")
    add_format(parser)


def execute(args: Namespace) -> int:
    """Read the source, write the set, and report written and missing parts; return 1 if a part is missing."""
    root = Path(args.src)
    if not root.exists():
        raise DataSetError(f"{root} does not exist")
    trace_set = open_folder(args, root, args.precision)
    write_err(*describe_issues(trace_set.issues, shown_warnings=len(trace_set.issues)))
    if has_nothing(trace_set):
        raise DataSetError(f"{root} holds nothing that can be converted")
    find_output(args.output, args)  # refuses links in a set
    done = convert_set(trace_set, root, Path(args.output))
    lost = [line for line in done.lost if not line.startswith("error: ")]
    if errors := sum(issue.severity == "error" for issue in trace_set.issues):
        lost.append(f"what the {count(errors, 'error')} above {'is' if errors == 1 else 'are'} about")
    write_err(*(f"not carried over: {line}" for line in lost))
    numbers = {f"{noun}s": getattr(done, f"{noun}s") for noun in NOUNS}
    warnings = [str(issue) for issue in trace_set.issues if issue.severity == "warning"]
    further = {"lost": done.lost, "read_otherwise": warnings}
    text = f"{done.output}: {', '.join(map(count, numbers.values(), NOUNS))}"
    write_result(args, {"output": str(done.output), **numbers, **further}, [text])
    return FAILED if done.lost else RAN
