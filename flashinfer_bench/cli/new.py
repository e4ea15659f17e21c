"""`new solution`, `new definition` and `new workload`: write files that already run, for the user to edit."""

from __future__ import annotations

import json
import os
import shlex
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.cli.args import Output, find_output, open_trace_set, refuse_unknown
from flashinfer_bench.cli.axes import AXIS_HELP
from flashinfer_bench.cli.output import write_err
from flashinfer_bench.cli.parser import EXIT_CODES, PROGRAM, Parser, add_flags, add_format, add_local, number
from flashinfer_bench.cli.tables import write_result
from flashinfer_bench.data import Definition, LoadIssue, TraceSet
from flashinfer_bench.data.annotations import make_parts
from flashinfer_bench.data.issue import Location
from flashinfer_bench.data.solution import SupportedLanguages
from flashinfer_bench.data.store.dialects import MOST_SOURCE_BYTES
from flashinfer_bench.data.store.layout import definition_path, path_part, workloads_path
from flashinfer_bench.data.store.parse import parse_raw
from flashinfer_bench.data.store.skeletons import SKELETONS, make_definition_parts, make_solution_text
from flashinfer_bench.errors import DataSetError, UsageError

ANNOTATED: Final = '  def run(x: "bfloat16[rows, columns=4096]", eps: float) -> "y: bfloat16[rows, columns]":'
LANGUAGES: Final = tuple(language.value for language in SKELETONS)


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
        "a definition with a reference",
        description="Write a definition into a trace set, whose folder is made if it is missing. The default is a "
        "skeleton with two\nworkloads. With --reference, no workload is written, and shapes and dtypes come from the "
        f"annotations of the\nfile's run:\n{ANNOTATED}\nA missing annotation is asked for on a terminal. {EXIT_CODES}",
        usage="%(prog)s NAME --local SET [--reference FILE] [--op-type T]",
        example="new definition my_scale --local my-set --reference my_scale.py",
        execute=execute_definition,
    )
    add_flags(definition, {"NAME": "of the definition"})
    definition.add_argument("--local", metavar="SET", required=True, help="the trace set's folder; made if missing")
    text = "a Python file with an annotated run(...), which becomes the reference (default: a skeleton)"
    add_flags(definition, {"--reference FILE": text})
    add_flags(definition, {"--op-type --op-types T": "default: %(default)s"}, op_type="custom")
    add_format(definition)
    workload = parser.add_command(
        "workload",
        "a workload of a definition",
        description="Append a workload to the set: a size for each var axis, and a source for inputs that are not "
        "random. Files\nare copied into the set. An axis of a stored input needs no size. Several sizes make several "
        f"workloads.\n{EXIT_CODES}",
        usage="%(prog)s DEFINITION --local SET [--axis NAME=SIZES] [--input NAME=SOURCE] [--weight W]",
        example="new workload rmsnorm_h4096 --local flashinfer-trace --axis batch_size=128",
        execute=execute_workload,
    )
    workload.add_argument("name", metavar="DEFINITION", help="its name in the set")
    workload.add_argument("--local", metavar="SET", required=True, help="the trace set's folder")
    repeated: dict[str, Any] = {"action": "append", "default": []}
    workload.add_argument("--axis", metavar="NAME=SIZES", help=AXIS_HELP, **repeated)
    text = "source of an input: FILE.safetensors[:KEY], a number, random or custom; may be repeated"
    workload.add_argument("--input", metavar="NAME=SOURCE", help=text, **repeated)
    text = "weight in means over workloads, such as a share of the time in production (default: 1)"
    workload.add_argument("--weight", type=number, metavar="W", help=text)
    add_format(workload)


def execute_solution(args: Namespace) -> int:
    """Write the source file."""
    trace_set = open_trace_set(args)
    name = args.definition
    refuse_unknown(("definition", [name], trace_set.definitions))
    language = SupportedLanguages(args.language)
    suffix = language.record.suffixes[0]
    mark = "" if args.language == LANGUAGES[0] else f"_{language.value}"  # one name per language
    file = Path(args.output or f"my_{path_part(name)}{mark}{suffix}")
    if file.suffix.lower() != suffix:
        raise DataSetError(f"-o: a {language.value} source ends with {suffix}, unlike {file}")
    root = trace_set.roots[0] if trace_set.roots else "SET"
    following = ["run", str(root), "--solution", str(file), "--definition", name]
    _write(args, {find_output(file, args): make_solution_text(trace_set.definitions[name], language)}, following)
    return 0


def execute_definition(args: Namespace) -> int:
    """Write the definition and its workloads."""
    root = Path(args.local)
    plain, lines = make_definition_parts(args.name, args.op_type)
    if args.reference is not None:
        plain, lines = _read_reference(args), []
    definition = _check(plain, Path(args.reference or root))
    # Two definitions with the same name are an error, even in different folders.
    known = TraceSet.from_path(root).definition_files.get(definition.name) if root.is_dir() else None
    if known is not None:
        raise DataSetError(f"{root} has a definition {definition.name!r} already, in {known}; nothing was written")
    names = {"op_type": definition.op_type, "definition": definition.name}
    texts = {Output(definition_path(root, **names), root): json.dumps(plain, indent=2) + "\n"}
    following = ["new", "solution", str(root), "--definition", definition.name]
    if lines:
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        texts[Output(workloads_path(root, **names), root)] = text
    else:
        sizes = [word for axis in definition.var_axes for word in ("--axis", f"{axis}=64")]
        scalars = {name: spec.dtype for name, spec in definition.inputs.items() if spec.shape is None}
        given = [f"{name}={'true' if dtype == 'bool' else 1}" for name, dtype in scalars.items()]
        values = [word for text in given for word in ("--input", text)]
        following = ["new", "workload", definition.name, "--local", str(root), *sizes, *values]
    _write(args, texts, following)
    return 0


def execute_workload(args: Namespace) -> int:
    """Append the workloads."""
    from flashinfer_bench.cli.new_workload import add_workloads  # safetensors needs numpy

    files, uuids = add_workloads(args)
    command = shlex.join([PROGRAM, "new", "solution", args.local, "--definition", args.name])
    document = {"files": files, "workloads": uuids, "next": command}
    write_result(args, document, [*files, *(f"workload: {uuid}" for uuid in uuids), f"next: {command}"])
    return 0


def _read_reference(args: Namespace) -> dict[str, Any]:
    """Return the JSON of a definition, with the reference from a file. On a terminal, ask for missing annotations.

    Raises:
        UsageError: the file cannot be read, or annotations are missing or wrong.
    """
    try:
        source = read_whole(Path(args.reference), MOST_SOURCE_BYTES).decode("utf-8")
        parts = make_parts(source, _ask if sys.stdin.isatty() else None)
    except (OSError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        lines = str(getattr(error, "strerror", None) or error).splitlines()
        raise UsageError("\n".join(f"{args.reference}: {line}" for line in lines)) from error
    return {"name": args.name, "op_type": args.op_type, **parts, "reference": source}


def _ask(missing: str) -> str:
    write_err(missing.replace("write", "such as"))
    return sys.stdin.readline().strip().strip("\"'")


def _check(plain: dict[str, Any], file: Path) -> Definition:
    """Return the definition; raise DataSetError with all reasons if it is wrong."""
    issues: list[LoadIssue] = []
    definition = parse_raw(Definition, plain, Location(file), issues)
    if definition is None:
        raise DataSetError("\n".join(f"{file}: {issue.field}: {issue.reason}" for issue in issues))
    return definition


def _write(args: Namespace, texts: dict[Output, str], following: list[str]) -> None:
    """Write new files, and print their names and the next command. Existing files are refused."""
    if there := [str(output.path) for output in texts if os.path.lexists(output.path)]:
        raise DataSetError(f"{', '.join(there)} is there already; nothing was written")
    for output, text in texts.items():
        output.write(text)
    files = [str(output.path) for output in texts]
    command = shlex.join([PROGRAM, *following])
    write_result(args, {"files": files, "next": command}, [*files, f"next: {command}"])
