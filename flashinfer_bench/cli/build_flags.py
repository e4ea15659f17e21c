"""The flags of the commands around building: `pack` and `unpack`."""

from __future__ import annotations

from typing import Any, Final

from flashinfer_bench.cli.flag_parts import PROGRAM, add_format, add_local, command
from flashinfer_bench.cli.parser import Parser

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
    return {"pack": _pack_parser(commands), "unpack": _unpack_parser(commands)}


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
