"""`new solution` and `new definition`: write a commented skeleton that runs."""

from __future__ import annotations

import json
import os
import shlex
from argparse import Namespace
from pathlib import Path
from typing import Final

from flashinfer_bench.cli.args import Output, find_output, open_trace_set, refuse_unknown
from flashinfer_bench.cli.parser import EXIT_CODES, PROGRAM, Parser, add_flags, add_format, add_local
from flashinfer_bench.cli.tables import write_result
from flashinfer_bench.data import Definition, TraceSet
from flashinfer_bench.data.solution import SupportedLanguages
from flashinfer_bench.data.store.layout import definition_path, path_part, workloads_path
from flashinfer_bench.data.store.skeletons import SUFFIXES, make_definition_parts, make_solution_text
from flashinfer_bench.errors import DataSetError

LANGUAGES: Final = tuple(language.value for language in SUFFIXES)


def declare_new(parser: Parser) -> None:
    """Add the help and the sub-commands."""
    example = "new solution --local flashinfer-trace --definition rmsnorm_h4096"
    parser.describe("Write a commented skeleton that runs.", example=example)
    solution = parser.add_command(
        "solution",
        "a source file for a definition",
        description="Write a source file that is a solution of a definition. In Python it is the reference, so it "
        "passes. In\nother languages it fills the outputs with zeros, and has the reference as a comment.\n"
        f"{EXIT_CODES}",
        usage="%(prog)s SET --definition D [--language L] [-o FILE]",
        example=example,
        execute=execute_solution,
    )
    add_local(solution)
    solution.add_argument("--definition", "--definitions", required=True, metavar="D", help="its name in the set")
    flags = {
        f"--language {'|'.join(LANGUAGES)}": "default: %(default)s",
        "-o --output FILE": "file to write (default: my_DEFINITION.py here, or my_DEFINITION_LANGUAGE with its ending)",
    }
    add_flags(solution, flags, language=LANGUAGES[0])
    add_format(solution)
    definition = parser.add_command(
        "definition",
        "a definition with a reference and two workloads",
        description="Write a definition with a reference, and two workloads, into a trace set. The set's folder is "
        f"made if it\nis missing. {EXIT_CODES}",
        usage="%(prog)s NAME --local SET [--op-type T]",
        example="new definition my_scale --local my-set",
        execute=execute_definition,
    )
    add_flags(definition, {"NAME": "of the definition"})
    definition.add_argument("--local", metavar="SET", required=True, help="the trace set's folder; made if missing")
    add_flags(definition, {"--op-type --op-types T": "default: %(default)s"}, op_type="custom")
    add_format(definition)


def execute_solution(args: Namespace) -> int:
    """Write the source file."""
    trace_set = open_trace_set(args)
    name = args.definition
    refuse_unknown(("definition", [name], trace_set.definitions))
    language = SupportedLanguages(args.language)
    mark = "" if args.language == LANGUAGES[0] else f"_{language.value}"  # each language's solution has its own name
    file = Path(args.output or f"my_{path_part(name)}{mark}{SUFFIXES[language]}")
    if file.suffix.lower() != SUFFIXES[language]:
        raise DataSetError(f"-o: a {language.value} source ends with {SUFFIXES[language]}, unlike {file}")
    root = trace_set.roots[0] if trace_set.roots else "SET"
    following = ["run", str(root), "--solution", str(file), "--definition", name]
    _write(args, {find_output(file, args): make_solution_text(trace_set.definitions[name], language)}, following)
    return 0


def execute_definition(args: Namespace) -> int:
    """Write the definition and its workloads."""
    root = Path(args.local)
    plain, lines = make_definition_parts(args.name, args.op_type)
    definition = Definition.model_validate(plain)
    # A name of two definitions is an error, wherever their files lie.
    known = TraceSet.from_path(root).definition_files.get(definition.name) if root.is_dir() else None
    if known is not None:
        raise DataSetError(f"{root} has a definition {definition.name!r} already, in {known}; nothing was written")
    names = {"op_type": definition.op_type, "definition": definition.name}
    texts = {
        Output(definition_path(root, **names), root): json.dumps(plain, indent=2) + "\n",
        Output(workloads_path(root, **names), root): "".join(f"{json.dumps(line)}\n" for line in lines),
    }
    _write(args, texts, ["new", "solution", str(root), "--definition", definition.name])
    return 0


def _write(args: Namespace, texts: dict[Output, str], following: list[str]) -> None:
    """Write files that do not exist yet; print their names and the next command."""
    if there := [str(output.path) for output in texts if os.path.lexists(output.path)]:
        raise DataSetError(f"{', '.join(there)} is there already; nothing was written")
    for output, text in texts.items():
        output.write(text)
    files = [str(output.path) for output in texts]
    command = shlex.join([PROGRAM, *following])
    write_result(args, {"files": files, "next": command}, [*files, f"next: {command}"])
