"""Commands of flashinfer-bench for a model: look at a set, judge a solution, explain a failure, compare, as text.

Each function runs the command line in a process of its own, on the trace set in FIB_DATASET_PATH. The command's
progress goes to stderr. Arguments stand behind `=` or `--`, so that no text of a model is read as a flag.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import deque
from typing import Any, Final, Literal

from flashinfer_bench.base.files.held_folders import temporary_folder
from flashinfer_bench.errors import UsageError

UNSAFE: Final = re.compile(r"[^\w.-]|^[.-]+")
"""Characters of a name that are omitted from its file's name. Commas would divide a list of solutions."""
ERROR_LINES: Final = 40
"""Maximum lines of stderr in an error."""
SUFFIXES: Final = {"cuda": ".cu", "cpp": ".cpp"}
"""Language of a source text → suffix of its file. Sources in other languages get .py."""


def flashinfer_bench_list(
    kind: Literal["definitions", "solutions", "workloads"] = "definitions",
    definition: str | None = None,
) -> str:
    """List the definitions of a trace set, or its solutions or workloads.

    Args:
        kind: what to list.
        definition: only of this definition.
    """
    return _run_command("list", definitions=definition, workloads=kind == "workloads", solutions=kind == "solutions")


def flashinfer_bench_show(name: str, definition: str | None = None) -> str:
    """Show a definition with its reference code, a solution with its sources, or a workload; with their verdicts.

    Args:
        name: name of a definition or a solution, or the uuid of a workload.
        definition: search for a solution or a workload only in this definition.
    """
    return _run_command("show", name, definitions=definition)


def flashinfer_bench_validate(definition: str | None = None) -> str:
    """Show the errors and warnings of a trace set, with file, line and reason.

    Args:
        definition: only of this definition.
    """
    return _run_command("validate", definitions=definition)


def flashinfer_bench_run(
    solution: str,
    definition: str | None = None,
    workloads: list[str] | None = None,
    name: str = "candidate",
    language: str | None = None,
    quick: bool = False,
    device: str | None = None,
) -> str:
    """Judge and time a solution, and store it in the trace set with its verdicts.

    Args:
        solution: its source code, the path of a file or folder, or its name in the trace set.
        definition: the definition that it implements; default: found by its parameters.
        workloads: only these workloads: uuids, or sizes such as batch_size=7; default: all.
        name: for source code, the name of the solution. A later solution of this name replaces it, except one of
            another kind of file (.py, .cpp, .cu), which needs another name.
        language: for source code, such as python, triton, cuda or cpp; default: found by its imports.
        quick: a first check with few samples.
        device: the device, such as cuda:0 or cpu; default: all GPUs, or the CPU if there is none.
    """
    given = {"workloads": ",".join(workloads or ()), "language": language, "quick": quick, "devices": device}
    with temporary_folder("agents") as folder:  # if a call is killed, the next run removes it
        if "\n" in solution:
            stem = UNSAFE.sub("_", name) or "candidate"
            file = folder / (stem + SUFFIXES.get(language or "", ".py"))
            file.write_text(solution, "utf-8")
            solution = str(file)
        return _run_command("run", solutions=solution or ",", definitions=definition, **given)  # an empty name is all


def flashinfer_bench_explain(
    solution: str, workload: str, definition: str | None = None, device: str | None = None
) -> str:
    """Judge a solution on one workload again, and say why it is wrong.

    The text has the reason, a map of the wrong elements, and a temporary folder with a script that shows the failure.

    Args:
        solution: its name in the trace set, or the path of a file or folder.
        workload: a uuid or its beginning, or sizes such as batch_size=7.
        definition: the definition, if the solution does not name it.
        device: the device, such as cuda:0 or cpu; default: the first.
    """
    dump = tempfile.mkdtemp()
    return _run_command("repro", solution, workload, definitions=definition, devices=device, dump=dump)


def flashinfer_bench_compare(
    before: str, after: str, definition: str | None = None, budget_s: float = 60, device: str | None = None
) -> str:
    """Decide whether one solution is faster than another, with which confidence, by timing both interleaved.

    Args:
        before: the present version: its name in the trace set, or the path of a file or folder.
        after: the new version, in the same form.
        definition: the definition, if the solutions do not name it.
        budget_s: seconds of measuring.
        device: the device, such as cuda:0 or cpu; default: the first.
    """
    return _run_command("compare", before, after, definitions=definition, budget=budget_s, devices=device)


COMMANDS: Final = (
    flashinfer_bench_list,
    flashinfer_bench_show,
    flashinfer_bench_validate,
    flashinfer_bench_run,
    flashinfer_bench_explain,
    flashinfer_bench_compare,
)


def _run_command(word: str, *arguments: str, **flags: Any) -> str:
    """Return the result of a command. A command that ends without a result returns the end of its stderr as ERROR."""
    named = {flag: value for flag, value in flags.items() if value is not None and value is not False and value != ""}
    given = [f"--{flag}" if value is True else f"--{flag}={value}" for flag, value in named.items()]
    argv = [sys.executable, "-m", "flashinfer_bench", word, *given, *(("--", *arguments) if arguments else ())]
    last: deque[str] = deque(maxlen=ERROR_LINES)
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            for line in process.stderr or ():
                last.append(line)
                sys.stderr.write(line)
        output.seek(0)
        text = output.read()
    return text if text and process.returncode != UsageError.exit_code else f"ERROR: {''.join(last)}"
