"""`pack` and `unpack`: turn a folder of sources into a solution file, and back."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from flashinfer_bench.cli.args import find_output, open_trace_set
from flashinfer_bench.cli.output import write_err, write_json, write_out
from flashinfer_bench.cli.parser import EXIT_CODES, PROGRAM, Parser, add_format, add_local
from flashinfer_bench.cli.render import count
from flashinfer_bench.data import Definition, Solution, load_json_file
from flashinfer_bench.data.entry import check_entry
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store.layout import path_part
from flashinfer_bench.data.store.pack import pack_folder, unpack_solution
from flashinfer_bench.errors import DataSetError

MANIFEST: Final = """a manifest, solution.yaml in the folder:
  name: my_rmsnorm
  definition: rmsnorm_h4096
  author: me
  language: cuda                       # python, triton, tilelang, cpp or cuda
  target_hardware: [NVIDIA H200]
  entry_point: main.cu::run
  destination_passing_style: true
  binding: tvm-ffi                     # or torch; cpp and cuda only"""


def declare_pack(parser: Parser) -> None:
    """Add the help and the flags of `pack`."""
    parser.describe(
        "Make a solution file of a folder of sources with a manifest. The entry point is looked up in the\n"
        "sources; with --local the arguments of one in Python are held against the definition.\n"
        f"{EXIT_CODES}\n\n{MANIFEST}",
        usage="%(prog)s DIR [-o FILE] [--local PATH] [flags]",
        example=f"{PROGRAM} pack my_rmsnorm/ -o my_rmsnorm.json --local flashinfer-trace",
        execute=execute_pack,
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
        execute=execute_unpack,
    )
    parser.add_argument("file", metavar="FILE", help="the solution file")
    parser.add_argument("-d", "--directory", metavar="DIR", help="a folder that is new or empty (default: NAME here)")
    add_format(parser)


def execute_pack(args: argparse.Namespace) -> int:
    """Read the folder, check it against its definition, and write the solution file."""
    folder = Path(args.folder)
    solution, warnings = pack_folder(folder)
    for issue in warnings:
        write_err(str(issue))
    definition = _find_definition(solution, args)
    problems = check_entry(solution, definition)
    if problems:
        raise DataSetError("\n".join([f"{folder} is not packed:", *(f"  {line}" for line in problems)]))
    file = Path(args.output) if args.output is not None else Path(f"{path_part(solution.name)}.json")
    _check_target(file, solution)
    find_output(file, args).write(solution.to_json(indent=2) + "\n")
    _tell(args, solution, [file], f"{file}: {solution.name} for {solution.definition}, {_sources(solution)}")
    return 0


def execute_unpack(args: argparse.Namespace) -> int:
    """Write the folder of a solution file."""
    if not Path(args.file).is_file():
        where = "SET/solutions/<author>/<op_type>/<definition>/<solution>.json"
        raise DataSetError(f"{args.file} is no file; unpack takes a solution's file, such as {where}")
    solution = load_json_file(Solution, args.file)
    folder = Path(args.directory) if args.directory is not None else Path(path_part(solution.name))
    files = unpack_solution(solution, folder, root=find_output(folder, args).root)
    _tell(args, solution, files, "\n".join(map(str, files)))
    return 0


def _sources(solution: Solution) -> str:
    size = sum(len(source.content.encode()) for source in solution.sources)
    return f"{count(len(solution.sources), 'source')} of {size} bytes"


def _find_definition(solution: Solution, args: argparse.Namespace) -> Definition | None:
    """Return the definition from the named set, or None where no set is named.

    Raises:
        DataSetError: the set does not have the definition.
    """
    if not args.local:
        return None
    definitions = open_trace_set(args).definitions
    if solution.definition not in definitions:
        hint = did_you_mean(solution.definition, definitions)
        raise DataSetError(f"definition: the trace set has no definition {solution.definition!r}{hint}")
    return definitions[solution.definition]


def _check_target(file: Path, solution: Solution) -> None:
    """Refuse to overwrite a file that is not an earlier version of this solution."""
    if not file.exists():
        return
    try:
        there = load_json_file(Solution, file).name
    except DataSetError:
        there = None
    if there != solution.name:
        raise DataSetError(f"{file} is there and is not {solution.name}; name another file with -o")


def _tell(args: argparse.Namespace, solution: Solution, files: list[Path], text: str) -> None:
    if args.format == "json":
        names = {name: getattr(solution, name) for name in ("name", "definition", "author")}
        write_json({**names, "digest": solution.digest(), "files": list(map(str, files))})
    else:
        write_out(text + "\n")
