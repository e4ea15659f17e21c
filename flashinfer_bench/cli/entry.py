"""Runs one command: parse what was typed, call the command, and turn its errors into lines and an exit code.

Only the module of the command that was typed is imported. It declares its flags in `declare_<word>(parser)`, and
imports the engine when it is called: the help waits for nothing. `args.argv` is what was typed.
"""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from flashinfer_bench import __version__
from flashinfer_bench.cli.output import INTERRUPTED, open_streams, start_log, write_err, write_out, write_problems
from flashinfer_bench.cli.parser import PROGRAM, Parser, describe_unknown_arguments
from flashinfer_bench.errors import FlashInferBenchError, Misuse

_log = logging.getLogger(__name__)

RUN: Final = "run"
PERF: Final = "perf"
"""The command that parses its own arguments, because its flags depend on the routine."""
NONE_STARTS: Final = {"-h", "--help", "--dry-run", "--watch", "--cluster"}
"""Flags with which no session is started here, or only by a thread that has to start its own process for it."""
COMPLETING: Final = "_ARGCOMPLETE"
"""Is set in the environment when a shell asks what may follow."""
COMMANDS: Final = {
    RUN: "judge and time solutions",
    "list": "list definitions, solutions or workloads of a trace set",
    "new": "write a skeleton to begin with",
    "validate": "show everything wrong with a trace set",
    "validate-render": "show a report of validate",
    "config": "show settings",
    "report": "make tables of traces",
    "compare": "say whether one solution is faster than another, and how sure that is",
    "cache": "look after what is built",
    "build": "compile solutions without running them",
    "pack": "make a solution file of a folder of sources",
    "unpack": "make a folder of sources of a solution file",
    "convert": "write a set of another layout in the standard one",
    "repro": "show why a verdict is what it is: its call in files",
    "inspect": "look at one call of a solution with ncu or compute-sanitizer",
    "doctor": "tell what this machine can measure",
    "completion": "print a script that completes commands in a shell",
    "serve": "judge what clients submit over HTTP",
    "submit": "submit a solution to a server",
    "top": "show what a server is doing",
    PERF: "time FlashInfer's kernels",
}
"""First word of each command, in the order of the help → its line of the help."""
OTHER_FILES: Final = {
    "validate-render": "validate",
    "config": "settings",
    "unpack": "pack",
    "completion": "entry",
    "top": "submit",
    PERF: "perf.flags",
}
"""Command → its file, where that has another name."""


def run_command_line(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if COMPLETING in os.environ:
        complete()
    if not arguments:
        write_err(make_parser(arguments).format_help())
        return Misuse.exit_code
    code = _run(arguments, starts_ahead=argv is None)
    if argv is None:
        gc.freeze()  # the process ends now: to look for cycles among all that was imported would take it 0.1 s
    return code


def parse_command_line(argv: Sequence[str]) -> Namespace:
    """Parse the arguments. The result has the function to call as `execute`, and what was typed as `argv`.

    Raises:
        Misuse: the command or a flag is unknown, or a value cannot be used.
    """
    if argv[0] == PERF:
        return Namespace(execute=import_command(PERF).execute, argv=list(argv))
    args, rest = make_parser(argv).parse_known_args(argv)
    if rest and getattr(args, "takes_sets", False) and not any(argument.startswith("-") for argument in rest):
        args.local, rest = [*(args.local or []), *rest], []
    if rest:
        raise Misuse("\n".join(describe_unknown_arguments(rest, args.parser)))
    if not hasattr(args, "execute"):
        raise Misuse(f"{args.parser.prog} needs a command: {' or '.join(args.parser.children())}")
    args.argv = list(argv)
    return args


def make_parser(argv: Sequence[str]) -> Parser:
    """Make the parser of the whole command line. Only the command that was typed has its flags."""
    parser = Parser(prog=PROGRAM)
    parser.describe(
        "Decide whether GPU kernels are right and how fast they are: run the solutions of a trace set.",
        example="run --local flashinfer-trace",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    typed = next((argument for argument in argv if not argument.startswith("-")), None)
    for word, text in COMMANDS.items():
        added = parser.add_command(word, text, add_help=word != PERF)
        if word == typed and word != PERF:
            getattr(import_command(word), f"declare_{word.replace('-', '_')}")(added)
    return parser


def complete() -> None:
    """Tell a shell what may follow the line that it has; this ends the process."""
    import argcomplete

    words = os.environ.get("COMP_LINE", "").split()[1:]
    parser = make_parser(words)
    if words[:1] == [PERF]:
        import_command(PERF).declare_perf(parser.children()[PERF])  # it usually parses its own
    argcomplete.autocomplete(parser)


def declare_completion(parser: Parser) -> None:
    """Add the help and the arguments of the command."""
    parser.describe(
        'Print a script that completes commands, flags, and names of a set. bash and zsh: eval "$(… completion bash)"\n'
        "in the shell's own file; fish: … completion fish > ~/.config/fish/completions/flashinfer-bench.fish.",
        example="completion bash",
        execute=print_completion,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")


def print_completion(args: Namespace) -> int:
    """Print the script."""
    if importlib.util.find_spec("argcomplete") is None:
        raise Misuse("completion needs argcomplete: pip install argcomplete")
    from argcomplete.shell_integration import shellcode

    write_out(shellcode([PROGRAM], shell=args.shell) + "\n")
    return 0


def import_command(word: str) -> ModuleType:
    """Import the module of a command."""
    return importlib.import_module(f"flashinfer_bench.cli.{OTHER_FILES.get(word, word)}")


def _run(argv: Sequence[str], *, starts_ahead: bool) -> int:
    """Run a command. Misuse, faults and interrupts become lines without a traceback, and an exit code.

    If sessions will be forked, the process that imports torch is started first, since that takes longest. It imports
    while this process imports its own part, reads the set and plans. If the guess is wrong, as when arguments cannot
    be used, it ends with this process.
    """
    try:
        try:
            Path.cwd()  # without it neither a path nor torch's libraries are found
        except FileNotFoundError:
            raise Misuse("the working directory was removed; cd to another one first") from None
        if starts_ahead and argv[0] in (RUN, PERF) and not NONE_STARTS & {word.partition("=")[0] for word in argv}:
            from flashinfer_bench.bench.machine import guess_kind  # before anything that takes long to import
            from flashinfer_bench.bench.runner.environments import starter_environment
            from flashinfer_bench.bench.runner.launcher import launcher_for

            launcher_for(starter_environment(os.environ, "cpu" if "cpu" in argv else guess_kind()))
        start_log(argv)
        args = parse_command_line(argv)
        code: int = args.execute(args)
    except FlashInferBenchError as error:
        _log.debug("what led to the error below", exc_info=True)
        write_problems(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        write_err("interrupted")
        return INTERRUPTED
    return code
