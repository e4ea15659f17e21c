"""The flags and the help of the commands about trace sets."""

from __future__ import annotations

from typing import Final

from flashinfer_bench.cli.flags.engine_words import CHECKS
from flashinfer_bench.cli.parser import NameList, Parser
from flashinfer_bench.cli.parser import EXIT_CODES, PROGRAM, add_format, add_local, add_names

REPORT_FILES: Final = {"json": "report.json", "text": "report.txt"}
"""Output → its file in the output folder."""
BASELINE_AUTHOR: Final = "baseline"
MANIFEST: Final = """a manifest, solution.yaml in the folder:
  name: my_rmsnorm
  definition: rmsnorm_h4096
  author: me
  language: cuda                       # python, triton, tilelang, cpp or cuda
  target_hardware: [NVIDIA H200]
  entry_point: main.cu::run
  destination_passing_style: true
  binding: tvm-ffi                     # or torch; cpp and cuda only"""


def declare_list(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "List the definitions with their op type and how many workloads, solutions and traces they have.\n"
        "Or list the solutions, or the workloads, of these definitions.",
        example=f"{PROGRAM} list --local flashinfer-trace --op-types gemm rmsnorm",
        execute="sets.list:execute",
    )
    add_local(parser)
    add_names(parser, "--definitions", "only these definitions")
    add_names(parser, "--op-types", "only these op types")
    add_names(parser, "--authors", "with --solutions: only those of these authors")
    listed = "list solutions, or only these"
    parser.add_argument("--solutions", "--solution", nargs="*", action=NameList, metavar="NAME", help=listed)
    sized = "list workloads: uuids and sizes"
    parser.add_argument("--workloads", "--workload", dest="lists_workloads", action="store_true", help=sized)
    parser.add_argument("--evaluators", action="store_true", help="which evaluator judges each definition, and why")
    parser.add_argument("--config", metavar="FILE", help="with --evaluators: the run's file, for its evaluator_modules")
    add_names(parser, "--evaluator-modules", "with --evaluators: modules with evaluators of your own")
    add_format(parser)


def declare_validate(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Show every error and warning of a trace set: file, line, field, reason; and what it does not cover.\n"
        "Exit codes: 0 no errors, 1 errors, 2 misuse.",
        example=f"{PROGRAM} validate --local flashinfer-trace",
        execute="sets.validate.command:execute",
    )
    add_local(parser, flags=("--local", "--dataset"))
    add_names(parser, "--checks", f"of {', '.join(CHECKS)} (default: the first five)")
    add_names(parser, "--definitions", "only these definitions")
    add_names(parser, "--op-types", "only these op types")
    parser.add_argument("--disable-gpu", action="store_true", help="baseline and benchmark judge on the CPU")
    author = "whose solutions benchmark judges (default: %(default)s)"
    parser.add_argument("--baseline-author", metavar="NAME", default=BASELINE_AUTHOR, help=author)
    add_names(parser, "--outputs", "of stdout, json, text (default: stdout; with a folder all)")
    files = " and ".join(REPORT_FILES.values())
    parser.add_argument("--output-folder", metavar="DIR", help=f"where {files} are written")
    add_format(parser)


def declare_validate_render(parser: Parser) -> None:
    """Add the help and the arguments of the command."""
    parser.describe(
        "Show a report that `validate --outputs json` wrote, as the text that it would print.\n"
        "Exit codes are those of validate: 1 where the report has errors.",
        example=f"{PROGRAM} validate-render report.json",
        execute="sets.validate.render:execute",
    )
    parser.add_argument("report", metavar="REPORT", help="the report.json")


def declare_pack(parser: Parser) -> None:
    """Add the help and the flags of `pack`."""
    parser.describe(
        "Make a solution file of a folder of sources with a manifest. The entry point is looked up in the\n"
        "sources; with --local the arguments of one in Python are held against the definition.\n"
        f"{EXIT_CODES}\n\n{MANIFEST}",
        usage="%(prog)s DIR [-o FILE] [--local PATH] [flags]",
        example=f"{PROGRAM} pack my_rmsnorm/ -o my_rmsnorm.json --local flashinfer-trace",
        execute="sets.pack:execute_pack",
    )
    parser.add_argument("folder", metavar="DIR", help="a folder with sources and solution.yaml (or solution.json)")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write (default: NAME.json here)")
    add_local(parser, "a trace set's folder with the definition; may be repeated")
    add_format(parser)


def declare_unpack(parser: Parser) -> None:
    """Add the help and the flags of `unpack`."""
    parser.describe(
        "Write the sources of a solution file into a new folder, with a manifest from which `pack` makes\n"
        f"the same solution again. {EXIT_CODES}",
        usage="%(prog)s FILE [-d DIR] [flags]",
        example=f"{PROGRAM} unpack my_rmsnorm.json -d my_rmsnorm/",
        execute="sets.pack:execute_unpack",
    )
    parser.add_argument("file", metavar="FILE", help="the solution file")
    parser.add_argument("-d", "--directory", metavar="DIR", help="a folder that is new or empty (default: NAME here)")
    add_format(parser)


def declare_convert(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Write a trace set in the standard layout: one saved by another engine, a problem's folder, a folder of\n"
        "problems, or definitions dumped from a library. What cannot be carried over is told; nothing in SRC changes.\n"
        "Exit codes: 0 all of it was written, 1 something is missing, 2 misuse.",
        usage="%(prog)s SRC --output DIR [flags]",
        example=f"{PROGRAM} convert problems/ --output my-set",
        execute="sets.convert:execute",
    )
    parser.add_argument("source", metavar="SRC", help="the folder to read")
    parser.add_argument("--output", metavar="DIR", required=True, help="where to write: a folder that is new or empty")
    add_format(parser)
