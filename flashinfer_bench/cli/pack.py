"""`pack` and `unpack`: turn a folder of sources into a solution file, and back."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Final

from flashinfer_bench.cli.args import find_output, open_trace_set, refuse_unknown
from flashinfer_bench.cli.output import write_err
from flashinfer_bench.cli.parser import EXIT_CODES, Parser, add_flags, add_format, add_local
from flashinfer_bench.cli.tables import count, write_result
from flashinfer_bench.data import Solution, load_json_file
from flashinfer_bench.data.entry import check_entry
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
  binding: tvm-ffi                     # or torch; compiled languages only"""


def declare_pack(parser: Parser) -> None:
    """Add the help and the flags of `pack`."""
    parser.describe(
        "Make a solution file from a folder of sources with a manifest. The entry point must be in the\n"
        "sources. With --local the arguments of a Python entry function are compared with the definition.\n"
        f"{EXIT_CODES}\n\n{MANIFEST}",
        usage="%(prog)s DIR [-o FILE] [--local PATH] [flags]",
        example="pack my_rmsnorm/ -o my_rmsnorm.json --local flashinfer-trace",
        execute=execute_pack,
    )
    flags = {
        "DIR": "a folder with sources and solution.yaml (or solution.json)",
        "-o --output FILE": "file to write (default: NAME.json here)",
    }
    add_flags(parser, flags)
    add_local(parser, "a trace set's folder with the definition; may be repeated")
    add_format(parser)


def declare_unpack(parser: Parser) -> None:
    """Add the help and the flags of `unpack`."""
    parser.describe(
        "Write the sources of a solution file into a new folder, with a manifest. `pack` makes\n"
        f"the same solution of it again. {EXIT_CODES}",
        usage="%(prog)s FILE [-d DIR] [flags]",
        example="unpack my_rmsnorm.json -d my_rmsnorm/",
        execute=execute_unpack,
    )
    flags = {"FILE": "the solution file", "-d --directory DIR": "folder to write: new or empty (default: NAME here)"}
    add_flags(parser, flags)
    add_format(parser)


def execute_pack(args: Namespace) -> int:
    """Read the folder, check the solution against its definition, and write the solution file."""
    folder = Path(args.dir)
    solution, warnings = pack_folder(folder)
    write_err(*map(str, warnings))
    definition = None
    if args.local:
        definitions = open_trace_set(args).definitions
        refuse_unknown(("definition", [solution.definition], definitions))
        definition = definitions[solution.definition]
    problems = check_entry(solution, definition)
    if problems:
        raise DataSetError("\n".join([f"{folder} is not packed:", *(f"  {line}" for line in problems)]))
    file = Path(args.output or f"{path_part(solution.name)}.json")
    if file.exists() and not _is_of(solution, file):
        raise DataSetError(f"{file} is there and is not {solution.name}; name another file with -o")
    find_output(file, args).write(solution.to_json(indent=2) + "\n")
    size = sum(len(source.content.encode()) for source in solution.sources)
    sources = f"{count(len(solution.sources), 'source')} of {size} bytes"
    _print_result(args, solution, [file], [f"{file}: {solution.name} for {solution.definition}, {sources}"])
    return 0


def execute_unpack(args: Namespace) -> int:
    """Write the folder of a solution file."""
    if not Path(args.file).is_file():
        where = "SET/solutions/<author>/<op_type>/<definition>/<solution>.json"
        raise DataSetError(f"{args.file} is no file; unpack takes a solution's file, such as {where}")
    solution = load_json_file(Solution, args.file)
    folder = Path(args.directory or path_part(solution.name))
    files = unpack_solution(solution, folder, root=find_output(folder, args).root)
    _print_result(args, solution, files, list(map(str, files)))
    return 0


def _is_of(solution: Solution, file: Path) -> bool:
    """Return whether a file has an earlier version of a solution."""
    try:
        return load_json_file(Solution, file).name == solution.name
    except DataSetError:
        return False


def _print_result(args: Namespace, solution: Solution, files: list[Path], lines: list[str]) -> None:
    names = {name: getattr(solution, name) for name in ("name", "definition", "author")}
    write_result(args, {**names, "digest": solution.digest(), "files": list(map(str, files))}, lines)
