"""The flags of the commands around building: `build`, `pack`, `unpack`, `cache show`, `cache clear`, `cache verify`."""

from __future__ import annotations

import argparse
from typing import Any, Final

from flashinfer_bench.cli.parser import Parser, number, whole_number
from flashinfer_bench.cli.shared_flags import PROGRAM, add_format, add_local, add_names, command, command_group

EXIT_CODES: Final = "Exit codes: 0 all well, 1 something failed, 2 misuse."
MANIFEST: Final = """a manifest, solution.yaml in the folder:
  name: my_rmsnorm
  definition: rmsnorm_h4096
  author: me
  language: cuda                       # python, triton, tilelang, cpp or cuda
  target_hardware: [NVIDIA H200]
  entry_point: main.cu::run
  destination_passing_style: true
  binding: tvm-ffi                     # or torch; cpp and cuda only"""


def add_build_commands(commands: Any) -> dict[str, Parser]:
    """Add these commands; return the parser of each by its module."""
    built = command_group(
        commands,
        "cache",
        help="look after what is built",
        description="List, remove or check what is built.",
        example=f"{PROGRAM} cache show",
    )
    return {
        "build": _build_parser(commands),
        "pack": _pack_parser(commands),
        "unpack": _unpack_parser(commands),
        "cache_show": _show_parser(built),
        "cache_clear": _clear_parser(built),
        "cache_verify": _verify_parser(built),
    }


def _build_parser(commands: Any) -> Parser:
    parser = command(
        commands,
        "build",
        "build",
        usage="%(prog)s [FILE ...] [--local PATH] [flags]",
        help="compile solutions without running them",
        description="Compile the solutions of a trace set, or single solution files, without running any. No GPU is\n"
        "needed: CUDA solutions are compiled for the GPUs here, else for sm_90a. What is built is kept for `run`.\n"
        "A solution for which something is missing here (a compiler, a package) is skipped with the reason.\n"
        f"{EXIT_CODES}",
        example=f"{PROGRAM} build --local flashinfer-trace --authors cuda --arch sm_80 sm_90a",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="solution files (default: the solutions of the set)")
    add_local(parser)
    group = parser.add_argument_group("what to build", "one or more names each, separated by spaces or commas")
    add_names(group, "--definitions", "only solutions of these definitions")
    add_names(group, "--op-types", "only solutions of these op types")
    add_names(group, "--solutions", "only these solutions")
    add_names(group, "--authors", "only solutions of these authors")
    group = parser.add_argument_group("how")
    add_names(group, "--arch", "GPU architectures to compile CUDA solutions for, such as sm_90a (default: those here)")
    group.add_argument(
        "--build-jobs",
        type=whole_number,
        metavar="N",
        default=argparse.SUPPRESS,
        help="compilers at once (default: as many as there are cores)",
    )
    group.add_argument("--require-built", action="store_true", help="exit with 1 when anything was skipped, too")
    add_format(group)
    group.add_argument("--quiet", action="store_true", help="no progress; only errors and the result")
    parser.set_defaults(config=None)
    return parser


def _pack_parser(commands: Any) -> Parser:
    parser = command(
        commands,
        "pack",
        "pack",
        usage="%(prog)s DIR [-o FILE] [--local PATH] [flags]",
        help="make a solution file of a folder of sources",
        description="Make a solution file of a folder of sources with a manifest. The entry point is looked up in the\n"
        "sources; with --local the arguments of one in Python are held against the definition.\n"
        f"{EXIT_CODES}\n\n{MANIFEST}",
        example=f"{PROGRAM} pack my_rmsnorm/ -o my_rmsnorm.json --local flashinfer-trace",
    )
    parser.add_argument("folder", metavar="DIR", help="a folder with sources and solution.yaml (or solution.json)")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write (default: NAME.json here)")
    add_local(parser, "a trace set's folder with the definition; may be repeated")
    add_format(parser)
    return parser


def _unpack_parser(commands: Any) -> Parser:
    parser = command(
        commands,
        "unpack",
        "unpack",
        usage="%(prog)s FILE [-d DIR] [flags]",
        help="make a folder of sources of a solution file",
        description="Write the sources of a solution file into a new folder, with a manifest from which `pack` makes\n"
        f"the same solution again. {EXIT_CODES}",
        example=f"{PROGRAM} unpack my_rmsnorm.json -d my_rmsnorm/",
    )
    parser.add_argument("file", metavar="FILE", help="the solution file")
    parser.add_argument("-d", "--directory", metavar="DIR", help="a folder that is new or empty (default: NAME here)")
    add_format(parser)
    return parser


def _show_parser(commands: Any) -> Parser:
    parser = command(
        commands,
        "show",
        "cache_show",
        help="list what is built",
        description=f"List the built solutions, where they lie and how much room they take. {EXIT_CODES}",
        example=f"{PROGRAM} cache show",
    )
    add_format(parser)
    return parser


def _clear_parser(commands: Any) -> Parser:
    parser = command(
        commands,
        "clear",
        "cache_clear",
        help="remove what is built",
        description=f"Remove the built solutions; those that a run is using stay. {EXIT_CODES}",
        example=f"{PROGRAM} cache clear --keep-gb 5",
    )
    parser.add_argument(
        "--keep-gb", type=number, metavar="F", help="remove what was not used for longest, until this much is left"
    )
    add_format(parser)
    return parser


def _verify_parser(commands: Any) -> Parser:
    parser = command(
        commands,
        "verify",
        "cache_verify",
        help="check what is built",
        description="Hold every built file against the digest that was noted when it was built. What is damaged is\n"
        f"built again when it is next needed. {EXIT_CODES}",
        example=f"{PROGRAM} cache verify --remove",
    )
    parser.add_argument("--remove", action="store_true", help="remove what is damaged")
    add_format(parser)
    return parser
