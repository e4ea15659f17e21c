"""`new solution` and `new definition`: write a commented skeleton that runs, to begin with."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.writing import WriteRefused
from flashinfer_bench.cli.args import Output, find_output, open_trace_set
from flashinfer_bench.cli.output import write_out
from flashinfer_bench.cli.parser import PROGRAM
from flashinfer_bench.data import Definition, TraceSet
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.solution import SupportedLanguages
from flashinfer_bench.data.store.jsonl import write_whole
from flashinfer_bench.data.store.layout import definition_path, path_part, workloads_path
from flashinfer_bench.data.store.skeletons import SUFFIXES, make_definition_parts, make_solution_text
from flashinfer_bench.errors import DataSetError, Fault

LANGUAGES: Final = tuple(language.value for language in SUFFIXES)


def execute_solution(args: argparse.Namespace) -> int:
    """Write the source file."""
    trace_set = open_trace_set(args)
    name, definitions = args.definition, trace_set.definitions
    if name not in definitions:
        hint = did_you_mean(name, definitions) or f"; `{PROGRAM} list` shows what there is"
        raise DataSetError(f"--definition: the trace set has no definition {name!r}{hint}")
    language = SupportedLanguages(args.language)
    mark = "" if args.language == LANGUAGES[0] else f"_{language.value}"  # each language's solution has its own name
    file = Path(args.output or f"my_{path_part(name)}{mark}{SUFFIXES[language]}")
    if file.suffix.lower() != SUFFIXES[language]:
        raise DataSetError(f"-o: a {language.value} source ends with {SUFFIXES[language]}, unlike {file}")
    _write({find_output(file, args): make_solution_text(definitions[name], language)})
    root = trace_set.roots[0] if trace_set.roots else "SET"
    _tell(args, [file], ["run", str(root), "--solution", str(file), "--definition", name])
    return 0


def execute_definition(args: argparse.Namespace) -> int:
    """Write the definition and its workloads."""
    root = Path(args.local)
    plain, lines = make_definition_parts(args.name, args.op_type)
    definition = Definition.model_validate(plain)
    _refuse_known(root, definition.name)
    file = definition_path(root, op_type=definition.op_type, definition=definition.name)
    workloads = workloads_path(root, op_type=definition.op_type, definition=definition.name)
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    _write({Output(file, root): json.dumps(plain, indent=2) + "\n", Output(workloads, root): text})
    _tell(args, [file, workloads], ["new", "solution", str(root), "--definition", definition.name])
    return 0


def _write(texts: dict[Output, str]) -> None:
    """Write files that are not there yet."""
    there = [str(file) for file, _ in texts if os.path.lexists(file)]
    if there:
        raise DataSetError(f"{', '.join(there)} is there already; nothing was written")
    for (file, root), text in texts.items():
        try:
            write_whole(file, text, root=root)
        except WriteRefused as error:
            raise DataSetError(f"{file} cannot be written: {error.strerror}") from error
        except OSError as error:
            raise Fault(f"{file} cannot be written: {error.strerror}") from error


def _refuse_known(root: Path, name: str) -> None:
    """Refuse the name of a definition that the set has, wherever its file lies: two of one name are an error."""
    file = TraceSet.from_path(root).definition_files.get(name) if root.is_dir() else None
    if file is not None:
        raise DataSetError(f"{root} has a definition {name!r} already, in {file}; nothing was written")


def _tell(args: argparse.Namespace, files: list[Path], words: list[str]) -> None:
    following = shlex.join([PROGRAM, *words])
    if args.format == "json":
        document: dict[str, Any] = {"files": [str(file) for file in files], "next": following}
        write_out(json.dumps(document, indent=2) + "\n")
    else:
        write_out("".join(f"{file}\n" for file in files) + f"next: {following}\n")
