"""Runs one command: parse what was typed, call the command, and turn its errors into lines and an exit code.

Only the flags of the command that was typed are imported: `declare_<word>(parser)` in a file of `flags/` names the
function to call, `execute(args) -> int`. The module of that function is imported when it is called: neither the help
nor a misspelt flag waits for it. `args.argv` is what was typed.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Final, NamedTuple

from flashinfer_bench import __version__
from flashinfer_bench.cli.exit_codes import INTERRUPTED
from flashinfer_bench.cli.parser import Parser, check_command, describe_unknown_arguments
from flashinfer_bench.cli.screen.log_level import start_log
from flashinfer_bench.cli.screen.output import open_closed_streams, tolerate_narrow_encodings, write_err, write_problems
from flashinfer_bench.cli.shared_flags import PROGRAM
from flashinfer_bench.errors import FlashInferBenchError, Misuse

_log = logging.getLogger(__name__)

RUN: Final = "run"
NOTHING_RUNS: Final = {"-h", "--help", "--dry-run", "--watch"}
"""Arguments with which no session is started, or only by a thread that has to start its own process for it."""
ELSEWHERE: Final = re.compile(r"--cluster\b")
"""A flag with which sessions are started on other machines."""
PERF: Final = "perf"
"""The command that parses its own arguments, because its flags depend on the routine."""


class Command(NamedTuple):
    """What the list of commands tells of a command."""

    module: str
    """The module in this package that declares it."""
    help: str
    children: tuple[str, ...] = ()
    """Its sub-commands."""


COMMANDS: Final = {
    RUN: Command("flags.run", "judge and time solutions"),
    "list": Command("flags.sets", "list definitions, solutions or workloads of a trace set"),
    "new": Command("flags.edit", "write a skeleton to begin with", ("solution", "definition")),
    "validate": Command("flags.sets", "show everything wrong with a trace set"),
    "validate-render": Command("flags.sets", "show a report of validate"),
    "config": Command("flags.config_show", "show settings", ("show",)),
    "report": Command(
        "flags.report",
        "make tables of traces",
        ("summary", "best", "history", "diff", "visualize", "html", "export", "merge"),
    ),
    "compare": Command("compare", "say whether one solution is faster than another, and how sure that is"),
    "cache": Command("flags.machine", "look after what is built", ("show", "clear", "verify", "baselines")),
    "build": Command("flags.machine", "compile solutions without running them"),
    "pack": Command("flags.sets", "make a solution file of a folder of sources"),
    "unpack": Command("flags.sets", "make a folder of sources of a solution file"),
    "convert": Command("flags.sets", "write a set of another layout in the standard one"),
    "repro": Command("edit.repro", "show why a verdict is what it is: its call in files"),
    "inspect": Command(
        "machine.inspect", "look at one call of a solution with ncu or compute-sanitizer", ("ncu", "sanitizer")
    ),
    "doctor": Command("machine.doctor", "tell what this machine can measure"),
    "completion": Command("flags.edit", "print a script that completes commands in a shell"),
    "serve": Command("flags.resident", "judge what clients submit over HTTP"),
    "submit": Command("flags.resident", "submit a solution to a server"),
    "top": Command("flags.resident", "show what a server is doing"),
    PERF: Command("perf.command", "time FlashInfer's kernels"),
}
"""The first word of each command, in the order of the help."""


def run_command_line(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    open_closed_streams()
    tolerate_narrow_encodings()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        make_parser(arguments).print_help(sys.stderr)
        return Misuse.exit_code
    code = call(lambda: _run(arguments, starts_ahead=argv is None))
    if argv is None:
        gc.freeze()  # the process ends now: to look for cycles among all that was imported would take it 0.1 s
    return code


def call(command: Callable[[], int]) -> int:
    """Call a command and return the exit code. Misuse, faults and interrupts become lines without a traceback."""
    try:
        return command()
    except FlashInferBenchError as error:
        _log.debug("what led to the error below", exc_info=True)
        write_problems(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        write_err("interrupted")
        return INTERRUPTED


def parse_command_line(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments. The result has the function to call as `execute`, and what was typed as `argv`.

    Raises:
        Misuse: the command or a flag is unknown, or a value cannot be used.
    """
    check_command(argv, {word: command.children for word, command in COMMANDS.items()})
    if argv[0] == PERF:
        return argparse.Namespace(execute=_import_command(PERF).execute, argv=list(argv))
    parser = make_parser(argv)
    args, rest = parser.parse_known_args(argv)
    if rest and getattr(args, "takes_sets", False) and not any(argument.startswith("-") for argument in rest):
        args.local, rest = [*(args.local or []), *rest], []
    if rest:
        raise Misuse("\n".join(describe_unknown_arguments(rest, getattr(args, "parser", parser))))
    if not hasattr(args, "execute"):
        raise Misuse(f"no command; known: {', '.join(COMMANDS)}")
    args.argv = list(argv)
    return args


def make_parser(argv: Sequence[str]) -> Parser:
    """Make the parser of the whole command line. Only the command that was typed has its flags."""
    parser = Parser(prog=PROGRAM)
    parser.describe(
        "Decide whether GPU kernels are right and how fast they are: run the solutions of a trace set.",
        example=f"{PROGRAM} run --local flashinfer-trace",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_commands()
    typed = next((argument for argument in argv if not argument.startswith("-")), None)
    for word, command in COMMANDS.items():
        added = commands.add_parser(word, help=command.help, add_help=word != PERF)
        if word == typed and word != PERF:
            getattr(_import_command(word), f"declare_{word.replace('-', '_')}")(added)
    return parser


def _start_ahead(argv: Sequence[str]) -> None:
    """Start the process that imports torch, where sessions will be forked from it: nothing else takes as long.

    It imports while this process imports its own part, reads the set and plans. Where the guess is wrong, as when the
    arguments cannot be used, it ends with this process.
    """
    if argv[0] in (RUN, PERF) and not NOTHING_RUNS & set(argv) and not any(map(ELSEWHERE.match, argv)):
        from flashinfer_bench.bench.machine import guess_kind  # before anything that takes long to import
        from flashinfer_bench.bench.runner.environments import starter_environment
        from flashinfer_bench.bench.runner.launcher import launcher_for

        launcher_for(starter_environment(os.environ, "cpu" if "cpu" in argv else guess_kind()))


def _has_no_folder() -> bool:
    """Tell whether the working directory was removed: then neither a relative path nor torch's libraries are found."""
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd is the same
    except FileNotFoundError:
        return True
    return False


def _import_command(word: str) -> ModuleType:
    return importlib.import_module(f"flashinfer_bench.cli.{COMMANDS[word].module}")


def _run(argv: Sequence[str], *, starts_ahead: bool) -> int:
    is_lost = _has_no_folder()
    if starts_ahead and not is_lost:
        _start_ahead(argv)
    start_log(argv)
    args = parse_command_line(argv)
    if is_lost and not {"-h", "--help"} & set(argv):
        raise Misuse("the working directory was removed; cd to another one first")
    code: int = args.execute(args)
    return code
