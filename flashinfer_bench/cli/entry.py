"""Runs one command: parses the arguments, calls the command, and turns errors into lines and an exit code.

Only the module of the given command is imported. The module declares flags in `declare_<word>(parser)`. The module
imports the engine when the command runs, so that the help is fast. `args.argv` has the arguments as typed.
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
from flashinfer_bench.cli.github import run_on_github
from flashinfer_bench.cli.output import INTERRUPTED, open_streams, start_log, write_err, write_out, write_problems
from flashinfer_bench.cli.parser import PROGRAM, Parser, describe_unknown_arguments
from flashinfer_bench.errors import FlashInferBenchError, UsageError

_log = logging.getLogger(__name__)

RUN: Final = "run"
PERF: Final = "perf"
"""The command that parses its own arguments, because its flags depend on the routine."""
NONE_STARTS: Final = {"-h", "--help", "--dry-run", "--watch", "--cluster"}
"""With one of these flags, this process forks no session: none is needed, or another process forks the sessions."""
COMPLETING: Final = "_ARGCOMPLETE"
"""Environment variable that a shell sets when it completes a command line."""
COMMANDS: Final = {
    RUN: "judge and time solutions",
    "list": "list definitions, solutions or workloads of a trace set",
    "show": "show a definition, a solution or a workload of a trace set",
    "new": "write a skeleton of a solution or a definition",
    "forget": "remove a solution and its traces from a trace set",
    "validate": "show everything wrong with a trace set",
    "validate-render": "show a report of validate",
    "config": "show settings",
    "report": "make tables of traces",
    "compare": "say whether one solution is faster than another, and with which confidence",
    "cache": "list, remove or check cached builds and times",
    "build": "compile solutions without running them",
    "pack": "make a solution file from a folder of sources",
    "unpack": "make a folder of sources from a solution file",
    "convert": "write a set of another layout in the standard layout",
    "fetch": "download a trace set from the Hugging Face hub",
    "export": "write solutions for FlashInfer's Trace Apply",
    "repro": "write the call that decided a verdict to files",
    "inspect": "inspect one call of a solution with ncu or compute-sanitizer",
    "doctor": "report whether this machine can measure",
    "completion": "print a script that completes commands in a shell",
    "serve": "judge what clients submit over HTTP",
    "submit": "submit a solution to a server",
    "top": "show what a server is doing",
    "mcp": "serve tools to a model, by the Model Context Protocol",
    PERF: "time FlashInfer's kernels",
}
"""Command → line in the help. The help lists the commands in this order."""
OTHER_FILES: Final = {
    "validate-render": "validate",
    "config": "settings",
    "unpack": "pack",
    "completion": "entry",
    "top": "submit",
    PERF: "perf.flags",
}
"""Command → module, for commands whose module has a different name."""


def run_command_line(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if COMPLETING in os.environ:
        complete()
    if not arguments:
        write_err(make_parser(arguments).format_help())
        return UsageError.exit_code
    code = _run(arguments, starts_ahead=argv is None)
    if argv is None:
        gc.freeze()  # the process ends soon; without this call, a search for reference cycles takes 0.1 s
    return code


def parse_command_line(argv: Sequence[str]) -> Namespace:
    """Parse the arguments. The result has the function to call as `execute`, and the typed words as `argv`.

    Raises:
        UsageError: the command or a flag is unknown, or a value cannot be used.
    """
    if argv[0] == PERF:
        return Namespace(execute=import_command(PERF).execute, argv=list(argv))
    args, rest = make_parser(argv).parse_known_args(argv)
    if rest and getattr(args, "takes_sets", False) and not any(argument.startswith("-") for argument in rest):
        args.local, rest = [*(args.local or []), *rest], []
    if rest:
        raise UsageError("\n".join(describe_unknown_arguments(rest, args.parser)))
    if not hasattr(args, "execute"):
        raise UsageError(f"{args.parser.prog} needs a command: {' or '.join(args.parser.children())}")
    args.argv = list(argv)
    return args


def make_parser(argv: Sequence[str]) -> Parser:
    """Make the parser of the whole command line. Only the given command has its flags."""
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
    """Print the completions of a shell's line, and end the process."""
    import argcomplete

    words = os.environ.get("COMP_LINE", "").split()[1:]
    parser = make_parser(words)
    if words[:1] == [PERF]:
        import_command(PERF).declare_perf(parser.children()[PERF])  # `perf` usually parses its own arguments
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
        raise UsageError("completion needs argcomplete: pip install argcomplete")
    from argcomplete.shell_integration import shellcode

    write_out(shellcode([PROGRAM], shell=args.shell) + "\n")
    return 0


def import_command(word: str) -> ModuleType:
    """Import the module of a command."""
    return importlib.import_module(f"flashinfer_bench.cli.{OTHER_FILES.get(word, word)}")


def _run(argv: Sequence[str], *, starts_ahead: bool) -> int:
    """Run a command. UsageError, faults and interrupts become lines without a traceback, and an exit code.

    If sessions will be forked, the fork server starts first, because importing torch takes longest. Meanwhile this
    process imports other modules, reads the set and plans. A fork server that is not needed ends with this process.
    """
    try:
        try:
            Path.cwd()  # relative paths and torch's libraries need a working directory
        except FileNotFoundError:
            raise UsageError("the working directory was removed; cd to another one first") from None
        if starts_ahead and argv[0] in (RUN, PERF) and not NONE_STARTS & {word.partition("=")[0] for word in argv}:
            from flashinfer_bench.bench.machine import guess_kind  # before the slow imports
            from flashinfer_bench.bench.runner.environments import server_environment
            from flashinfer_bench.bench.runner.launcher import launcher_for

            launcher_for(server_environment(os.environ, "cpu" if "cpu" in argv else guess_kind()))
        start_log(argv)
        args = parse_command_line(argv)
        code: int = run_on_github(args) if getattr(args, "github", False) else args.execute(args)
    except FlashInferBenchError as error:
        _log.debug("what led to the error below", exc_info=True)
        write_problems(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        write_err("interrupted")
        return INTERRUPTED
    return code
