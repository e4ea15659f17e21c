"""The flags and the help of `new`, `repro` and `completion`."""

from __future__ import annotations

from typing import Final

from flashinfer_bench.cli.flags.engine_words import LANGUAGES
from flashinfer_bench.cli.parser import Parser
from flashinfer_bench.cli.shared_flags import EXIT_CODES, PROGRAM, add_format, add_local

OP_TYPE: Final = "custom"
SHELLS: Final = ("bash", "zsh", "fish")


def declare_new(parser: Parser) -> None:
    """Add the help and the sub-commands."""
    parser.describe(
        "Write a commented skeleton that runs.",
        example=f"{PROGRAM} new solution --local flashinfer-trace --definition rmsnorm_h4096",
    )
    commands = parser.add_commands()
    _declare_solution(commands.add_parser("solution", help="a source file for a definition"))
    _declare_definition(commands.add_parser("definition", help="a definition with a reference and two workloads"))


def _declare_solution(parser: Parser) -> None:
    parser.describe(
        "Write a source file that is a solution of a definition. In Python it is the reference, so it passes; in\n"
        "other languages it fills the outputs with zeros, and the reference stands below as a comment.\n"
        f"{EXIT_CODES}",
        usage="%(prog)s SET --definition D [--language L] [-o FILE]",
        example=f"{PROGRAM} new solution --local flashinfer-trace --definition rmsnorm_h4096",
        execute="edit.new:execute_solution",
    )
    add_local(parser)
    parser.add_argument("--definition", "--definitions", required=True, metavar="D", help="its name in the set")
    parser.add_argument("--language", choices=LANGUAGES, default=LANGUAGES[0], help="default: %(default)s")
    named = "where to write (default: my_DEFINITION.py, or my_DEFINITION_LANGUAGE with its ending, here)"
    parser.add_argument("-o", "--output", metavar="FILE", help=named)
    add_format(parser)


def _declare_definition(parser: Parser) -> None:
    parser.describe(
        "Write a definition with a reference, and two workloads, into a trace set. The set's folder is made where it\n"
        f"is missing. {EXIT_CODES}",
        usage="%(prog)s NAME --local SET [--op-type T]",
        example=f"{PROGRAM} new definition my_scale --local my-set",
        execute="edit.new:execute_definition",
    )
    parser.add_argument("name", metavar="NAME", help="of the definition")
    parser.add_argument("--local", metavar="SET", required=True, help="the trace set's folder, there or not")
    parser.add_argument("--op-type", "--op-types", metavar="T", default=OP_TYPE, help="default: %(default)s")
    add_format(parser)


def declare_completion(parser: Parser) -> None:
    """Add the help and the arguments of the command."""
    parser.describe(
        'Print a script that completes commands and flags. bash and zsh: eval "$(… completion bash)" in the shell\'s\n'
        "own file; fish: … completion fish > ~/.config/fish/completions/flashinfer-bench.fish.",
        example=f"{PROGRAM} completion bash",
        execute="edit.completion:execute",
    )
    parser.add_argument("shell", choices=SHELLS, help="which shell")
