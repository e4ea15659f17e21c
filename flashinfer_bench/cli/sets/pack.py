"""`pack` and `unpack`: turn a folder of sources into a solution file, and back."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from flashinfer_bench.cli.args import find_output
from flashinfer_bench.cli.args import open_trace_set
from flashinfer_bench.cli.output import write_err, write_out
from flashinfer_bench.cli.render import count
from flashinfer_bench.data import Definition, Solution, load_json_file
from flashinfer_bench.data.entry import check_entry
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store.jsonl import write_whole
from flashinfer_bench.data.store.layout import path_part
from flashinfer_bench.data.store.pack import pack_folder, unpack_solution
from flashinfer_bench.errors import DataSetError, Fault


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
    try:
        place = find_output(file, args)
        write_whole(place.path, solution.to_json(indent=2) + "\n", root=place.root)
    except OSError as error:
        raise Fault(f"{file} cannot be written: {error.strerror}") from error
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
        document: dict[str, Any] = {
            "name": solution.name,
            "definition": solution.definition,
            "author": solution.author,
            "digest": solution.digest(),
            "files": [str(path) for path in files],
        }
        write_out(json.dumps(document, indent=2) + "\n")
    else:
        write_out(text + "\n")
